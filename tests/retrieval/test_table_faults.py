"""A gallery's index where something goes wrong: killed and simultaneous processes, damaged files, a disk that is read-only."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from commands import ROOT
from feature_stores import damage
from gallery_process import BATCH, COUNT, hits_at, paint, pixels_of, update_index
from numeric import numpy_generator

from demo_sdtps.retrieval import gallery

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")]),
}
KILLS = int(os.environ.get("TEST_KILLS", "4"))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(gallery, "BATCH", BATCH)


@pytest.fixture
def place(tmp_path):
    paint(tmp_path, range(COUNT), 0)
    return tmp_path


def start(place, *before):
    """A process that updates and searches the index when it is told to."""
    words = [*before, sys.executable, ROOT / "tests" / "helpers" / "gallery_process.py", place]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(words, text=True, cwd=ROOT, env=ENVIRONMENT, **pipes)
    while (line := process.stdout.readline()) != "ready\n":
        assert line, process.stderr.read()
    return process


def undisturbed(place):
    """The hits of an index that is made anew."""
    with tempfile.TemporaryDirectory() as other:
        os.symlink(place / "gallery", Path(other, "gallery"))
        update_index(Path(other))
        return hits_at(other)


@pytest.mark.slow
@pytest.mark.soak
def test_killed_processes_lose_the_batch_in_hand_at_most(place):
    """At random moments of making an index, of bringing it up to date and of an approximate index; the next command goes on."""
    draws = numpy_generator(1)
    seconds = float(start(place).communicate("go\n")[0].split()[-1])
    for number in range(KILLS):
        if number % 3 == 0:
            shutil.rmtree(place / "index")
        else:
            paint(place, draws.permutation(COUNT)[: COUNT // 3], number)
        (place / "log").write_text("")
        process = start(place)
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(seconds * draws.random())
        process.kill()
        process.communicate()
        batches = [line.split() for line in (place / "log").read_text().splitlines()]
        rest = []

        def extract(triplets, rest=rest):
            rest += [triplet.name for triplet in triplets]
            return pixels_of(triplets)

        update_index(place, extract)
        assert {*rest}.isdisjoint(itertools.chain(*batches[:-1]))
        assert hits_at(place) == undisturbed(place)
        assert not any(update_index(place))
        assert isinstance(hits_at(place, is_approximate=True), tuple)


@pytest.mark.slow
@pytest.mark.soak
def test_two_processes_that_update_an_index_at_once_leave_a_right_one(place):
    """A new one, then changed images; one of them may be refused."""
    (place / "log").write_text("")
    for number in range(2):
        paint(place, range(number * COUNT // 2), number)
        both = [start(place), start(place)]
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in both:
            _, errors = process.communicate()
            refusal = "was changed by another process meanwhile"
            assert process.returncode == 0 or refusal in errors, errors
        update_index(place)
        assert hits_at(place) == undisturbed(place)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_an_index_on_a_read_only_disk_is_searched(place):
    """By a user without the rights of root; new images cannot be added."""
    update_index(place)
    hits_at(place, is_approximate=True)
    (place / "log").write_text("")
    folders = [path for path in [place / "index", *(place / "index").rglob("*")] if path.is_dir()]
    for more in (0, 1):
        paint(place, range(COUNT, COUNT + more), 0)
        process = start(place, "setpriv", "--bounding-set=-all", "--inh-caps=-all")
        for folder in folders:
            folder.chmod(0o555)
        _, errors = process.communicate("go\n")
        for folder in folders:
            folder.chmod(0o755)
        assert process.returncode == more
        assert ("index cannot be written" in errors) if more else not errors


DAMAGED = {
    "rows": "features.lance/data/*",
    "deletions": "features.lance/_deletions/*",
    "versions": "features.lance/_versions/*",
    "transactions": "features.lance/_transactions/*",
    "checksums": "features.lance/checksums",
    "index": "features.lance/_indices/*/*",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """An index of several versions, with deleted rows and an approximate index."""
    place = tmp_path_factory.mktemp("sound")
    paint(place, range(COUNT), 0)
    update_index(place)
    hits_at(place, is_approximate=True)
    for number in range(40, 50):
        (place / "gallery" / "RGB" / f"{number:03}.png").unlink()
    update_index(place)
    return place


def test_a_version_that_is_lost_is_told(sound, tmp_path):
    """The one before it has rows that were deleted."""
    shutil.copytree(sound / "index", tmp_path / "index")
    min((tmp_path / "index" / "features.lance" / "_versions").glob("*.manifest")).unlink()
    assert "is damaged; make it anew" in hits_at(tmp_path)


def test_damaged_labels_of_rows_and_names_of_files_give_no_other_hits(sound, tmp_path):
    """Wherever they are stored as they are; a list of checksums without readable names checks nothing."""
    shutil.copytree(sound / "index", tmp_path / "index")
    table = tmp_path / "index" / "features.lance"
    listed = (table / "checksums").read_bytes()
    (table / "checksums").write_bytes(listed.replace(b"_versions/", b"_versions/\0"))
    assert hits_at(tmp_path) == hits_at(sound)
    for path in (table / "data").iterdir():
        path.write_bytes(path.read_bytes().replace(b"001.png", b"002.png"))
    assert "is damaged; make it anew" in hits_at(tmp_path)


@pytest.fixture(scope="module")
def expected(sound):
    """The exact and the approximate hits of the index."""
    return [hits_at(sound, is_approximate) for is_approximate in (False, True)]


@pytest.mark.parametrize(
    "zeroes",
    [pytest.param(False, id="flipped"), pytest.param(True, id="zeroed", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_of_any_file_gives_no_other_hits(sound, expected, kind, zeroes, tmp_path, capsys):
    """Each is of a copy, because LanceDB may remember what it has read."""
    draws = numpy_generator(9)
    for number in range(5):
        copy = tmp_path / str(number)
        shutil.copytree(sound / "index", copy / "index")
        damage(draws.choice(sorted((copy / "index").glob(DAMAGED[kind]))), draws, zeroes)
        capsys.readouterr()
        for is_approximate in (False, True):
            hits = hits_at(copy, is_approximate)
            is_told = isinstance(hits, str) and " damaged" in hits
            assert is_told or hits == expected[is_approximate]
            if kind == "deletions":
                assert is_told
            if kind == "index" and is_approximate:
                assert "is damaged and made anew" in capsys.readouterr().out
