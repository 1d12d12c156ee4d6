"""Folders of a data set in other letters or one level too deep: never read, but recognised in the sentence."""
from pathlib import Path

import pytest
from layouts import WRITERS
from test_datasets import FOLDERS
from triplets import config, message_of

from demo_sdtps.datasets import NAMES, read_splits

pytestmark = pytest.mark.parametrize("name", NAMES)


def message(root, name):
    said = message_of(read_splits, config(root, "DATASETS.NAMES", name))
    assert "\n" not in said and "expected" in said
    return said


def in_other_letters(folder):
    """Rename a folder: → where it is now. (By way of another name, for disks that do not tell letters apart.)"""
    other = folder.with_name(folder.name.swapcase())
    folder.rename(folder.with_name("between")).rename(other)
    return other


def test_the_data_sets_own_folder_in_other_letters(tmp_path, name):
    WRITERS[name](tmp_path)
    folder = tmp_path / FOLDERS[name][0].split("/")[0]
    there = in_other_letters(folder)
    assert message(tmp_path, name).startswith(
        f"The data set {name} is not at {folder}, but at {there}, which must be renamed to {folder.name}; expected is ")


def test_a_splits_folder_in_other_letters(tmp_path, name):
    WRITERS[name](tmp_path)
    folder = tmp_path / FOLDERS[name][0]
    there = in_other_letters(folder)
    assert f" is missing, but there is {there}: rename it to {folder.name}. (The train split" in message(tmp_path, name)


def test_the_images_folder_in_other_letters(tmp_path, name):
    folder = Path(WRITERS[name](tmp_path)["train"][0].paths[-1]).parent  # of a modality, where each has its own
    there = in_other_letters(folder)
    assert f"The folder {folder} is missing, but there is {there}: rename it to {folder.name}." in message(tmp_path, name)


def test_a_data_set_one_level_too_deep(tmp_path, name):
    WRITERS[name](tmp_path)
    folder = tmp_path / FOLDERS[name][0].split("/")[0]
    folder.rename(tmp_path / "between")
    folder.mkdir()
    (tmp_path / "between").rename(folder / folder.name)
    first = FOLDERS[name][0].split("/")[1]
    assert (f" is missing, but there is {folder / folder.name / first}, one level too deep: move what is in "
            f"{folder / folder.name} to {folder}. (The train split") in message(tmp_path, name)


def test_the_data_sets_folder_given_as_the_root(tmp_path, name):
    WRITERS[name](tmp_path)
    root = tmp_path / FOLDERS[name][0].split("/")[0]
    said = message(root, name)
    assert f"is not at {root / root.name} (is DATASETS.ROOT_DIR, {root}, that folder itself?)" in said
    assert "set DATASETS.ROOT_DIR to its parent folder" in said
