"""tools/search.py: hits as CSV, page and table, the index it keeps, and what it refuses."""
import csv
import os
import re
import shutil
from contextlib import ExitStack

import pytest
from browser import headless
from commands import CONFIG, KEEP_ALL, ONE_LINE, assert_same_hits, checkpoint_file, cli_args_for, contents
from PIL import Image
from reference import search as reference
from test_files import full_disk

import demo_sdtps
from demo_sdtps.config import load_cfg
from demo_sdtps.reports import search_page
from demo_sdtps.retrieval.store import LOCK
from demo_sdtps.runtime.files import locked
from demo_sdtps.tools import search

MODALITIES = ("RGB", "NI", "TI")


@pytest.fixture(scope="module")
def weights(tiny_root, tmp_path_factory):
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, *KEEP_ALL)[2:])
    return checkpoint_file(tmp_path_factory.mktemp("trained") / "last.pth", cfg)


@pytest.fixture
def place(files, tmp_path, monkeypatch):
    """The current folder: a `gallery` of five triplets, the second without NI, and a `query` of two, RGB and TI."""
    monkeypatch.chdir(tmp_path)
    for modality in MODALITIES:
        for number, path in enumerate(files[modality.lower()]):
            copy(path, tmp_path / "gallery" / modality / f"photo {number}.jpg", unless=number == 1 and modality == "NI")
            copy(path, tmp_path / "query" / modality / f"<i>&{number}.jpg", unless=number > 1 or modality == "NI")
    return tmp_path


def copy(path, to, unless=False):
    if not unless:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)


@pytest.fixture
def searched(command, weights, place):
    """Call the command on `gallery` and `query`: → (exit code, stdout, stderr)."""
    def call(*words, query="query", gallery="gallery"):
        return command(search.main, "--weight", weights, "--gallery", gallery, "--query", query, *words)

    return call


def triplets(folder):
    """Paths of RGB, NI and TI by name, None for a missing one; of a folder of JPEG files."""
    names = sorted({path.name for modality in MODALITIES for path in (folder / modality).glob("*")})
    return {name: [path if path.exists() else None for path in (folder / modality / name for modality in MODALITIES)]
            for name in names}


def rows_of(path):
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("pattern", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_hits_are_those_of_the_extractors_features(searched, weights, place, pattern):
    code, stdout, stderr = searched("--csv", "hits.csv", "--top", "4", "--return_pattern", pattern)
    assert code == 0, stderr
    assert stdout.splitlines()[0].endswith("5 triplets (5 new)") and stdout.splitlines()[1:] == [
        "Wrote hits.csv, hits: 8"]
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    sides = [triplets(place / side) for side in ("query", "gallery")]
    features = [reid.features(*zip(*side.values(), strict=True), pattern=pattern).tolist() for side in sides]
    expected = reference.nearest(*features, [*sides[1]], 4)
    header, *rows = rows_of("hits.csv")
    assert header == ["query", "rank", "gallery", "distance"]
    lines = [(f"query/RGB/{query}", str(rank), f"gallery/RGB/{name}", distance)
             for query, hits in zip(sides[0], expected, strict=True) for rank, (distance, name) in enumerate(hits, start=1)]
    assert_same_hits(rows, lines)


@pytest.mark.slow
def test_one_image_is_searched_for_with_its_siblings(searched, place, monkeypatch):
    searched("--csv", "all.csv", "--top", "5")
    expected = [row for row in rows_of("all.csv") if "<i>&1" in row[0]]
    for number, image in enumerate((expected[0][0], place / "query" / "TI" / "<i>&1.jpg")):
        code, stdout, stderr = searched("--csv", f"{number}.csv", query=image)
        assert code == 0 and "no change" in stdout, stderr
        alone = [[expected[0][0], *row[1:]] for row in rows_of(f"{number}.csv")[1:]]
        assert_same_hits(alone, expected)
    monkeypatch.chdir(place / "query" / "RGB")
    code, stdout, stderr = searched(query="<i>&1.jpg", gallery="../../gallery")
    assert code == 0, stderr
    printed = [line.split("/")[-1] for line in stdout.splitlines() if "/gallery/" in line]
    assert printed == [row[2].split("/")[-1] for row in alone]


@pytest.mark.slow
def test_the_index_follows_the_gallery(searched, place):
    assert "(5 new)" in searched("--index", "kept")[1]
    copy(place / "gallery" / "RGB" / "photo 0.jpg", place / "gallery" / "RGB" / "new.jpg")
    Image.new("RGB", (16, 32), (200, 0, 0)).save(place / "gallery" / "TI" / "photo 3.jpg")
    for modality in MODALITIES:
        (place / "gallery" / modality / "photo 4.jpg").unlink()
    code, stdout, stderr = searched("--index", "kept", "--csv", "grown.csv")
    assert code == 0 and stdout.splitlines()[0] == "Index kept: 5 triplets (1 new, 1 changed, 1 removed)", stderr
    searched("--index", "fresh", "--csv", "fresh.csv")
    assert_same_hits(*(rows_of(f"{name}.csv")[1:] for name in ("grown", "fresh")))


def test_the_page_is_one_file_that_holds_the_images(searched, place, monkeypatch):
    code, stdout, stderr = searched("--output", "hits.html", "--top", "3")
    assert code == 0 and "queries: 2, hits of each: 3" in stdout, stderr
    page = (place / "hits.html").read_text(encoding="utf-8")
    assert "&lt;i&gt;&amp;0" in page and "<i>" not in page and not re.search(r"(src|href)=\"(?!data:)|url\(|<script", page)
    assert page.count("<section>") == 2 and page.count("<figure") == 2 * (1 + 3)
    assert page.count("data:image/jpeg;base64,") + page.count('class="missing"') == 3 * 2 * (1 + 3)
    monkeypatch.setattr(search_page, "MOST_BYTES", 1)
    monkeypatch.setattr(search_page, "MOST_HITS", 2)
    told = searched("--output", "hits.html", "--top", "3", "--overwrite")[1]
    assert "queries: 2, hits of each: 3; the page is limited to 1 and 2, --csv writes all" in told


def test_without_a_file_to_write_the_hits_are_printed(searched, monkeypatch):
    monkeypatch.setattr(search, "PRINTED", 1)
    _, *lines = searched("--top", "2")[1].splitlines()
    assert lines[1] == "query/RGB/<i>&0.jpg" and re.fullmatch(r" +1 +0\.\d{4}  gallery/RGB/photo \d\.jpg", lines[2])
    assert lines[-1].startswith("… queries left out: 1") and len(lines) == 6


@pytest.mark.slow
def test_re_ranking_and_approximate_search_are_told(searched, place):
    code, stdout, stderr = searched("--index_type", "hnsw", "--re_rank", "9", "--top", "2", "--csv", "x.csv",
                                    "--output", "x.html")
    told = "hnsw: recall@5 1.000 against exact search (queries: 2)"
    assert code == 0 and told in stdout, stderr
    assert "k-reciprocal distance among the query and its first hits" in (place / "x.html").read_text(encoding="utf-8")
    assert all(0 <= float(row[3]) <= 1 for row in rows_of("x.csv")[1:])
    # It is kept until the approximate index is written anew.
    one = "query/RGB/<i>&1.jpg"
    assert told in searched("--index_type", "hnsw", query=one)[1]
    copy(place / "gallery" / "RGB" / "photo 0.jpg", place / "gallery" / "RGB" / "new.jpg")
    assert "recall@6 1.000 against exact search (queries: 1)" in searched("--index_type", "hnsw", query=one)[1]


BAD = {
    "no modality": (lambda place: os.renames(place / "gallery" / "RGB", place / "deep" / "gallery" / "rgb"),
                    ["--gallery", "deep/gallery"], "folder deep/gallery has no image in RGB, NI, TI"),
    "no gallery": (None, ["--gallery", "galery"], "folder galery is missing"),
    "a query that is no image": (lambda place: (place / "query" / "RGB" / "x.txt").touch(), ["--query", "query/RGB/x.txt"],
                                 "query/RGB/x.txt has a name that does not end like that of an image"),
    "more hits than images": (None, ["--top", "6"], "--top is 6, but the gallery gallery has 5 triplets"),
    "fewer re-ranked than shown": (None, ["--re_rank", "3"], "--re_rank is 3, fewer than the 5 hits to show"),
    "codes of few images": (None, ["--index_type", "ivfpq"], "has 5 triplets, but --index_type ivfpq is trained on 256"),
    "an output in the gallery": (None, ["--csv", "gallery/hits.csv"], "lies in gallery, which this command reads"),
    "an index in the gallery": (None, ["--index", "gallery/index"], "index gallery/index (--index) lies in gallery, which"),
    "an index of other files": (lambda place: (place / "mine").mkdir() or (place / "mine" / "x").touch(), ["--index", "mine"],
                                "mine has other files such as x"),
}


@pytest.mark.parametrize("make, words, said", BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_nothing_is_written(searched, place, make, words, said):
    if make:
        make(place)
    before = contents(place)
    code, _, stderr = searched(*words)
    assert code == 2 and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and said in stderr, stderr
    assert contents(place) == before


@pytest.mark.parametrize("side", ["query", "gallery"])
def test_images_that_cannot_be_read_are_all_named(searched, place, side):
    bad = [place / side / modality / next((place / side / modality).iterdir()).name for modality in ("RGB", "TI")]
    whole = {path: path.read_bytes() for path in bad}
    for path in bad:
        path.write_text("words")
    code, stdout, stderr = searched("--csv", "hits.csv")
    assert code == 2 and stderr.startswith(ONE_LINE) and not stdout and not (place / "hits.csv").exists()
    assert all(f"{path.relative_to(place)} cannot be read (cannot identify" in stderr for path in bad)
    for path in bad:
        path.write_bytes(whole[path])
    assert searched("--csv", "hits.csv")[0] == 0


@pytest.mark.parametrize("limit", [None, 1000], ids=["an image of the page", "the disk"])
def test_csv_and_page_are_written_both_or_neither(searched, place, monkeypatch, limit):
    """Where a hit's image is gone before it is drawn, and where the disk has room for the CSV alone."""
    searched("--index", "kept")
    search_page.thumbnail.cache_clear()
    before = contents(place)
    with monkeypatch.context() as patch:
        if limit is None:
            patch.setattr(search, "report", lambda *_: (place / "gallery" / "TI" / "photo 0.jpg").unlink() or "gone")
        else:
            patch.setattr(search, "report", lambda *_: held.enter_context(full_disk(limit)) or "full")
        with ExitStack() as held:
            code, _, stderr = searched("--index", "kept", "--csv", "hits.csv", "--output", "hits.html")
    assert code == 2 and stderr.startswith(ONE_LINE)
    before.pop("gallery/TI/photo 0.jpg" if limit is None else "", None)
    assert contents(place) == before


def test_an_index_of_other_weights_is_refused_and_made_anew_with_rebuild(searched, weights, place, tiny_root):
    searched("--index", "kept", "--top", "2")
    before = contents(place)
    other = checkpoint_file(place.parent / f"{place.name}.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]), classes=7)
    for words, said in ((("--weight", other), "another checkpoint"),
                        (("--return_pattern", "1"), "another return pattern (3, not 1)"),
                        (("INPUT.PIXEL_MEAN", "[0,0,0]"), "another INPUT.PIXEL_MEAN ([0.5, 0.5, 0.5], not [0, 0, 0])")):
        code, stdout, stderr = searched("--index", "kept", *words)
        assert code == 2 and stderr.startswith(ONE_LINE) and said in stderr and "--rebuild" in stderr and not stdout
        assert contents(place) == before
    code, stdout, stderr = searched("--index", "kept", "--weight", other, "--rebuild")
    assert code == 0 and "Index kept: 5 triplets (5 new)" in stdout, stderr


def test_an_index_is_used_by_one_command_at_a_time(searched, place):
    with locked(place / "kept" / LOCK, "The index"):
        code, stdout, stderr = searched("--index", "kept")
    assert code == 2 and "The index kept is in use by another process" in stderr and not stdout
    assert not (place / "kept").exists()


def test_without_faiss_the_extra_is_named(searched, monkeypatch):
    monkeypatch.setattr(demo_sdtps.runtime.extras, "find_spec", lambda name: None if name == "faiss" else name)
    code, _, stderr = searched()
    assert code == 2 and "needs faiss-cpu; install" in stderr and "pip install -e '.[search]'" in stderr


@pytest.fixture
def browser():
    with headless() as driver:
        yield driver


@pytest.mark.slow
def test_a_browser_shows_the_page_without_scrolling_sideways(searched, place, browser):
    searched("--output", "hits.html")
    browser.get((place / "hits.html").as_uri())
    seen = set()
    for width in (400, 1280):
        for scheme in ("light", "dark"):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            seen.add(browser.execute_script("const body = getComputedStyle(document.body);"
                                            "return body.color + body.backgroundColor"))
    assert len(seen) == 2 and not browser.get_log("browser")
    assert browser.execute_script("return [...document.images].every(image => image.naturalWidth > 0)")
