"""A run resumes with the data that it was begun with, and no others (engine/run/data.py)."""
import json
import os
import shutil

import pytest
import torch
from commands import ONE_LINE, cli_args_for, contents
from interrupted import NAMES_CRC, call
from seps_tiny import cli_args_for as seps_cli_args_for

from demo_sdtps import train_net, train_seps
from demo_sdtps.config import files
from demo_sdtps.engine.run import data

SHORT = ("SOLVER.EVAL_UNTRAINED", "False", "SOLVER.EVAL_PERIOD", "5", "MODEL.DROP_PATH", "0.1", "RESUME", "auto")


@pytest.fixture(scope="module")
def begun(tiny_root, tmp_path_factory):
    """The folder of a run of one epoch, to be resumed for a second."""
    return trained(train_net.main, cli_args_for(tiny_root, *SHORT), tmp_path_factory)


@pytest.fixture(scope="module")
def begun_seps(shapes_root, tmp_path_factory):
    return trained(train_seps.main, seps_cli_args_for(shapes_root, "RESUME", "auto"), tmp_path_factory)


def trained(main, words, tmp_path_factory):
    output = tmp_path_factory.mktemp("begun") / "run"
    assert call([*words, "OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "1"], main) == 0
    return output


@pytest.fixture
def refused(command):
    """Resume a copy of a run, which must be refused with one sentence and leave it as it is: → that sentence."""
    def found(run, output, main, words):
        shutil.copytree(run, output)
        before = contents(output)
        code, _, stderr = command(main, *words, "OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "2")
        said = stderr.strip().splitlines()[-1]
        assert code == 2 and said.startswith(f"{ONE_LINE}The data in DATASETS.ROOT_DIR ") and "Traceback" not in stderr
        assert contents(output) == before
        return said

    return found


def of_equal_size(folder):
    """The content of another image for the largest, with its size and its time."""
    *_, other, largest = sorted(folder.iterdir(), key=lambda path: path.stat().st_size)
    before = largest.stat()
    largest.write_bytes(other.read_bytes().ljust(before.st_size, b"\0"))
    os.utime(largest, ns=(before.st_atime_ns, before.st_mtime_ns))
    return largest.name


def swap(folder):
    (folder / "NI").rename(folder / "X")
    (folder / "TI").rename(folder / "NI")
    (folder / "X").rename(folder / "TI")
    return sorted(path.name for path in (folder / "NI").iterdir())[0]


def last_of(folder, act):
    """Do something to the last triplet of a folder."""
    name = sorted(path.name for path in (folder / "RGB").iterdir())[-1]
    return act(folder, name)


def remove(folder, name):
    for modality in ("RGB", "NI", "TI"):
        (folder / modality / name).unlink()
    return name


def double(folder, name):
    for modality in ("RGB", "NI", "TI"):
        shutil.copy(folder / modality / name, folder / modality / f"{name[:-4]}9.jpg")
    return f"{name[:-4]}9.jpg"


CHANGES = {
    "a picture of training": ("train_171", lambda folder: of_equal_size(folder / "TI"), "TI/{} has other content (train TI)"),
    "near infrared and thermal swapped": ("train_171", swap, "NI/{} has other content (train NI)"),
    "a picture of the test set": ("test", lambda folder: of_equal_size(folder / "NI"), "NI/{} has other content (query NI)"),
    "a test triplet removed": ("test", lambda folder: last_of(folder, remove), "RGB/{} is missing (query RGB)"),
    "a test triplet added": ("test", lambda folder: last_of(folder, double), "RGB/{} is new (query RGB)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_pictures_are_refused(begun, own_root, tmp_path, refused, change):
    folder, act, expected = CHANGES[change]
    name = act(own_root / "RGBNT201" / folder)
    said = refused(begun, tmp_path / "run", train_net.main, cli_args_for(own_root, *SHORT))
    assert f"begun with: RGBNT201/{folder}/{expected.format(name)}; put back" in said


def lines_of(path, change):
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")


SEPS_CHANGES = {
    "a caption": ("train_caps.txt", lambda lines: [*lines[:4], f"{lines[4]} again", *lines[5:]],
                  "line 5 has other content (train captions)"),
    "captions shifted by a line": ("test_caps.txt", lambda lines: [*lines[1:], lines[0]],
                                   "line 1 has other content (test captions)"),
    "the images of captions": ("dev_ids.txt", lambda lines: lines[::-1], " (dev images)"),
}


@pytest.mark.parametrize("change", SEPS_CHANGES)
def test_other_captions_are_refused(begun_seps, shapes_root, tmp_path, refused, change):
    file, act, expected = SEPS_CHANGES[change]
    shutil.copytree(shapes_root / "shapes", tmp_path / "shapes", ignore=shutil.ignore_patterns("bert"))
    lines_of(tmp_path / "shapes" / file, act)
    words = [*seps_cli_args_for(shapes_root, "RESUME", "auto"), "DATASETS.ROOT_DIR", tmp_path]
    assert expected in refused(begun_seps, tmp_path / "run", train_seps.main, words)


def test_a_checkpoint_without_contents_knows_the_names_of_training(begun, own_root, tmp_path, refused):
    """One of version 0.1, which holds a number; tests/test_resume.py resumes one."""
    older = shutil.copytree(begun, tmp_path / "older")
    last = torch.load(older / "last.pth", weights_only=True)
    torch.save(last | {"data": NAMES_CRC}, older / "last.pth")
    last_of(own_root / "RGBNT201" / "train_171", double)
    said = refused(older, tmp_path / "run", train_net.main, cli_args_for(own_root, *SHORT))
    assert "begun with: training files were added, removed or renamed; put back" in said


@pytest.mark.parametrize("held", [{}, {"train RGB": ["a"]}, {"train RGB": ""}])
def test_a_fingerprint_of_another_kind_is_other_data(held):
    now = {"train RGB": "1234 a.jpg\x005678 b.jpg"}
    assert data.difference(held, now) == "a.jpg is new (train RGB)"


def test_names_are_shown_without_control_characters():
    assert data.difference({"train RGB": "12 \x1b[1ma"}, {}) == "\\x1b[1ma is missing (train RGB)"


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Files of a second ago count as old; the cache is the test's own. → the root of three files, and their paths."""
    monkeypatch.setattr(files, "SETTLED", 0)
    monkeypatch.setenv("DEMO_SDTPS_CACHE", str(tmp_path / "cache"))
    paths = [tmp_path / "root" / f"{name}.jpg" for name in "abc"]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode())
    return str(tmp_path / "root"), list(map(str, paths))


def hashed(pictures):
    """The fingerprint, and the number of files that were read for it."""
    root, paths = pictures
    return data.fingerprint(root, {"train RGB": paths, "query RGB": paths[1:]}, {})


def test_a_file_is_read_again_when_it_has_changed(pictures):
    (first, one), (second, two) = hashed(pictures), hashed(pictures)
    assert (one, two) == (3, 0) and first == second
    path = pictures[1][1]
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"B")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    third, three = hashed(pictures)
    assert three == 1 and data.difference(first, third) == "b.jpg has other content (train RGB)"
    assert data.difference(third, hashed(pictures)[0]) == ""


def test_a_link_stands_for_the_file_that_it_leads_to(pictures, tmp_path):
    _, paths = pictures
    (tmp_path / "links").mkdir()
    links = [str(tmp_path / "links" / os.path.basename(path)) for path in paths]
    for path, link in zip(paths, links, strict=True):
        os.symlink(path, link)
    linked = str(tmp_path / "links"), links
    before, _ = hashed(linked)
    assert before == hashed(pictures)[0] and hashed(linked) == (before, 0)
    os.unlink(links[0])
    os.symlink(paths[1], links[0])
    assert data.difference(before, hashed(linked)[0]) == "a.jpg has other content (train RGB)"


def test_a_file_that_has_just_changed_is_not_cached(pictures, monkeypatch):
    """Its next change might come within one tick of the file system's clock."""
    monkeypatch.setattr(files, "SETTLED", 3600 * 10**9)
    assert [hashed(pictures)[1] for _ in range(2)] == [3, 3]


@pytest.mark.parametrize("damage", ["", "[1, 2]", '{"a.jpg": null, "b.jpg": 5', "\0", '{"a.jpg": {"b": 1}}', "not there"])
def test_a_damaged_cache_is_made_anew(pictures, damage, tmp_path):
    expected, _ = hashed(pictures)
    (cache,) = (tmp_path / "cache").iterdir()
    cache.unlink() if damage == "not there" else cache.write_text(damage)
    assert [hashed(pictures) for _ in range(2)] == [(expected, 3), (expected, 0)]
    assert json.loads(cache.read_text()).keys() == {"a.jpg", "b.jpg", "c.jpg"}


def test_a_cache_that_cannot_be_written_costs_time_only(pictures, tmp_path):
    (tmp_path / "cache").write_text("a file in the place of its folder")
    assert [hashed(pictures)[1] for _ in range(2)] == [3, 3]


def test_the_data_folder_may_move(pictures, tmp_path):
    root, paths = pictures
    (tmp_path / "root").rename(tmp_path / "moved")
    moved = [path.replace(root, str(tmp_path / "moved")) for path in paths]
    shutil.copytree(tmp_path / "moved", root)
    assert data.fingerprint(str(tmp_path / "moved"), {"x": moved}, {})[0] == data.fingerprint(root, {"x": paths}, {})[0]


def test_a_user_without_a_home_has_the_cache_elsewhere(monkeypatch, tmp_path):
    for name in ("DEMO_SDTPS_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # in no list of users
    monkeypatch.setattr(data.tempfile, "gettempdir", lambda: str(tmp_path))
    assert data.cache_file("x").parent == tmp_path / "demo_sdtps"
