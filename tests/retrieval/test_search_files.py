"""demo-sdtps search: a query's own file, links, files that cannot be read, and folders of one modality."""

import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from commands import KEEP_ALL, assert_same_hits, copy, read_rows

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = KEEP_ALL


def hits_by_query(path):
    actual = defaultdict(list)
    for query, _, hit, *_ in read_rows(path)[1:]:
        actual[Path(query).name].append(Path(hit).name)
    return actual


WAYS = {"exact": (), "re-ranked": ("--re_rank", 6)}


WAY = pytest.mark.parametrize(
    "way", ["exact", *(pytest.param(way, marks=pytest.mark.slow) for way in [*WAYS][1:])]
)


@WAY
def test_a_query_in_the_gallery_is_no_hit_of_its_own(search_output, place, way):
    """A copy is a hit, a link to the same file is none, and --keep_self has both."""
    copied = place / "gallery" / "TI" / "sub" / "copy.jpg"
    copy(place / "gallery" / "TI" / "photo 2.jpg", copied)
    (place / "linked" / "TI").mkdir(parents=True)
    (place / "linked" / "TI" / "other name.jpg").symlink_to(copied)
    sides = (("gallery", lambda name: name), ("linked", lambda name: "copy.jpg"))
    for query, self_of in sides[: 2 if way == "exact" else 1]:
        words = ("--index", "kept", "--overwrite", *WAYS[way])
        for top in (6, 4) if way == "exact" else (6,):
            search_output("--csv", "x.csv", "--top", top, *words, query=query)
            for name, hits in hits_by_query("x.csv").items():
                assert len(hits) == len(set(hits)) == min(top, 5) and self_of(name) not in hits
        search_output("--csv", "x.csv", "--top", 6, "--keep_self", *words, query=query)
        kept = hits_by_query("x.csv")
        assert all(self_of(name) in hits and len(hits) == 6 for name, hits in kept.items())
        if way == "exact":
            assert all(kept[name][0] in (self_of(name), "copy.jpg") for name in kept)


@pytest.mark.parametrize("way", ["exact", "re-ranked"])
def test_links_to_the_query_take_no_hit_away(search_output, place, way):
    """Of 8 triplets four have its file."""
    photo, query = place / "gallery" / "TI" / "photo 2.jpg", place / "linked" / "TI" / "q.jpg"
    query.parent.mkdir(parents=True)
    query.symlink_to(photo)
    for number in range(3):
        (photo.parent / f"link {number}.jpg").symlink_to(photo)
    for top in (4, 8) if way != "re-ranked" else (4,):
        words = ("--csv", "x.csv", "--overwrite", "--top", top, *WAYS[way])
        search_output(*words, query="linked")
        ((_, hits),) = hits_by_query("x.csv").items()
        assert len(hits) == 4 and not [hit for hit in hits if "link" in hit or "photo 2" in hit]


def test_links_to_nowhere_are_left_out_and_listed(run_search, search_output, place):
    folder = place / "gallery" / "NI"
    (folder / "lost.jpg").symlink_to(place / "nowhere.jpg")
    (folder / "self.jpg").symlink_to(folder / "self.jpg")
    (folder / "day").symlink_to(place / "no folder")
    words = ("--csv", "x.csv", "--index", "kept", "--overwrite", "--top", 5)
    code, _, stderr = run_search(*words)
    assert code == 2 and any(name in stderr for name in ("lost.jpg", "self.jpg", "day"))
    for _ in range(2):
        stdout = search_output(*words, "--skip_unreadable")
        assert "5 triplets" in stdout
        assert "Left out, 3 images:" in stdout and "self.jpg" in stdout.split("Left out")[1]
        assert {len(hits) for hits in hits_by_query("x.csv").values()} == {5}


@pytest.mark.slow
def test_unreadable_images_are_left_out_and_listed(run_search, search_output, place):
    """One of a triplet, all of another, and the query's; replaced, they are read."""
    names = ("RGB/photo 0.jpg", "RGB/photo 1.jpg", "TI/photo 1.jpg", "../query/RGB/<i>&0.jpg")
    broken = [(place / "gallery" / name).resolve() for name in names]
    whole = {path: path.read_bytes() for path in broken}
    for path, content in whole.items():
        path.write_bytes(content[: len(content) // 2])
    words = ("--csv", "x.csv", "--index", "kept", "--overwrite", "--top")
    code, _, stderr = run_search(*words, 4)
    assert code == 2 and str(broken[3].relative_to(place)) in stderr
    for _ in range(2):
        stdout = search_output(*words, 4, "--skip_unreadable")
        assert "4 triplets" in stdout and "Left out, 4 images:" in stdout
        assert all(str(path.relative_to(place)) in stdout.split("Left out")[1] for path in broken)
        hits = [row[2] for row in read_rows("x.csv")[1:]]
        assert "gallery/NI/photo 0.jpg" in hits and not [hit for hit in hits if "photo 1" in hit]
    for path, content in whole.items():
        path.write_bytes(content)
    assert "5 triplets (1 new, 1 changed)" in search_output(*words, 5)
    again = read_rows("x.csv")
    search_output("--csv", "y.csv", "--index", "anew", "--top", 5)
    assert_same_hits(read_rows("y.csv")[1:], again[1:])


def test_folders_of_one_modality_are_read_with_its_name(run_search, search_output, place):
    """A flat gallery with a nested folder, and a query in a folder of its own, and of one file."""
    for number, path in enumerate(sorted((place / "gallery" / "TI").iterdir())):
        copy(path, place / "flat" / ("night/deep" if number % 2 else "") / path.name)
    copy(place / "query" / "TI" / "<i>&0.jpg", place / "one" / "<i>&0.jpg")
    for side, modality in (("gallery", "RGB"), ("gallery", "NI"), ("query", "RGB")):
        shutil.rmtree(place / side / modality)
    search_output("--csv", "x.csv", query="query/TI/<i>&0.jpg")
    expected = [float(row[3]) for row in read_rows("x.csv")[1:]]
    for number, query in enumerate(("one", "one/<i>&0.jpg")):
        words = ("--csv", f"{number}.csv", "--modality", "ti")
        search_output(*words, gallery="flat", query=query)
        rows = read_rows(f"{number}.csv")[1:]
        assert [float(row[3]) for row in rows] == pytest.approx(expected, abs=1e-4)
        assert {place / row[2] for row in rows} == {*(place / "flat").rglob("*.jpg")}
    code, _, stderr = run_search(gallery="flat", query="one")
    assert code == 2 and "--modality RGB" in stderr
