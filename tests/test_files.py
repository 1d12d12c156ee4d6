"""Output files: refused before the work where they cannot be written, whole or absent after it, and never the wrong file."""
import os
import resource
import stat
from contextlib import contextmanager

import pytest
import torch

from demo_sdtps.config import UserError
from demo_sdtps.config.files import atomic_write, check_output_file, temporaries
from demo_sdtps.engine.checkpoint import save_whole


def write(path, text="new"):
    with atomic_write(path) as temporary:
        temporary.write_text(text)


def test_a_file_is_written_whole_in_a_new_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "x.json"
    with atomic_write(path) as temporary:
        temporary.write_text("1")
        assert not path.exists()
    assert path.read_text() == "1"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half"), atomic_write(path) as temporary:
        temporary.write_text("ne")
        raise RuntimeError("half-way")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_the_user_beside_the_output_stay(tmp_path):
    """Also those with the name that an earlier release wrote to first: a link there overwrote its target."""
    (tmp_path / "target").write_text("mine")
    (tmp_path / "x.json.part").symlink_to(tmp_path / "target")
    (tmp_path / "y.json.part").write_text("mine")
    for name in ("x.json", "y.json"):
        write(tmp_path / name)
    assert (tmp_path / "target").read_text() == (tmp_path / "y.json.part").read_text() == "mine"
    assert (tmp_path / "x.json.part").is_symlink() and (tmp_path / "x.json").read_text() == "new"


def test_temporary_files_are_new_ones_and_what_a_kill_leaves_is_known(tmp_path):
    with atomic_write(tmp_path / "x.json") as one, atomic_write(tmp_path / "x.json") as other, \
            atomic_write(tmp_path / "y.json"):
        assert one != other
        (tmp_path / "x.json.part").touch()
        (tmp_path / ".x.json.mine.part").touch()
        assert temporaries(tmp_path, ["x.json", "z.json"]) == sorted([one, other])


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask_like_those_of_any_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        write(tmp_path / "x.json")
        (tmp_path / "ordinary").touch()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


IRREGULAR = {"a link": lambda path: path.symlink_to(path.parent / "target.json"),
             "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"), "a pipe": os.mkfifo}


@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_regular_file_is_not_replaced(tmp_path, kind):
    path, target = tmp_path / "x.json", tmp_path / "target.json"
    target.write_text("mine")
    IRREGULAR[kind](path)
    before = path.lstat()
    for attempt in (lambda: write(path), lambda: check_output_file(path, ".json", overwrite=True)):
        with pytest.raises(UserError, match=r"x\.json exists and is not a regular file"):
            attempt()
    assert os.path.samestat(before, path.lstat()) and target.read_text() == "mine" and len(list(tmp_path.iterdir())) <= 2


@pytest.mark.parametrize("name", ["x.npz", "new/folder/x.npz"])
def test_places_that_can_be_written(tmp_path, name):
    assert check_output_file(tmp_path / name, ".npz") == tmp_path / name
    assert not list(tmp_path.iterdir()), "the check itself writes nothing"


@pytest.mark.parametrize("name", ["x.npy", "x", "folder.npz", "file/x.npz"])
def test_places_that_cannot(tmp_path, name):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"must be a file ending in \.npz"):
        check_output_file(tmp_path / name, ".npz")


def test_an_output_that_exists_needs_overwrite(tmp_path):
    (tmp_path / "x.npz").touch()
    with pytest.raises(UserError, match=r"x\.npz already exists; choose another, or pass --overwrite"):
        check_output_file(tmp_path / "x.npz", ".npz")
    assert check_output_file(tmp_path / "x.npz", ".npz", overwrite=True)


INPUTS = ("weights.pth", "hard.pth", "data/RGBNT201/x.pth", "data/RGBNT201/test/new/x.pth", "way/x.pth", "elsewhere/x.pth")


@pytest.mark.parametrize("name", INPUTS)
def test_an_output_is_no_input_and_not_in_the_data_set(tmp_path, name):
    """Named directly, by a hard link, or by way of links to folders, from outside the data set or within it."""
    (tmp_path / "data" / "RGBNT201" / "test").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "RGBNT201" / "query").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "way").symlink_to(tmp_path / "data" / "RGBNT201" / "test")
    (tmp_path / "weights.pth").touch()
    (tmp_path / "hard.pth").hardlink_to(tmp_path / "weights.pth")
    inputs = [None, "", "nowhere", tmp_path / "weights.pth", str(tmp_path / "data" / "RGBNT201")]
    with pytest.raises(UserError, match="which this command reads"):
        check_output_file(tmp_path / name, ".pth", True, inputs)
    assert check_output_file(tmp_path / "data" / "x.pth", ".pth", False, inputs)


@contextmanager
def full_disk(limit=1000):
    """Inside, no file may become larger than `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(UserError) as raised, full_disk():
        save_whole({"a": torch.zeros(100_000)}, tmp_path / "x.pth")
    assert f"The output {tmp_path / 'x.pth'} cannot be written (File too large); " in str(raised.value)
    assert not list(tmp_path.iterdir())
