"""tools/search.py: hits as CSV, page and table, the index it keeps, and what it refuses."""
import csv
import re
import shutil

import pytest
from browser import Page, headless
from commands import CONFIG, KEEP_ALL, ONE_LINE, assert_same_hits, checkpoint_file, cli_args_for, contents
from reference import search as reference

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
    features = [reid.features(*zip(*side.values(), strict=True), return_pattern=pattern).tolist() for side in sides]
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


@pytest.mark.slow
def test_re_ranking_and_approximate_search_are_told(searched, place):
    code, stdout, stderr = searched("--index_type", "hnsw", "--re_rank", "9", "--top", "2", "--csv", "x.csv",
                                    "--output", "x.html")
    told = "hnsw: recall@5 1.000 against exact search (queries: 2)"
    assert code == 0 and told in stdout, stderr
    assert "k-reciprocal distance among the query and its first hits" in (place / "x.html").read_text(encoding="utf-8")
    assert all(0 <= float(row[3]) <= 1 for row in rows_of("x.csv")[1:])


@pytest.mark.parametrize(("words", "said"), [
    (["--gallery", "galery"], "folder galery is missing"),
    (["--query", "query/RGB/x.txt"], "query/RGB/x.txt has a name that does not end like that of an image"),
    ])
def test_bad_input_is_one_sentence_and_nothing_is_written(searched, place, words, said):
    (place / "query" / "RGB" / "x.txt").touch()
    before = contents(place)
    code, _, stderr = searched(*words)
    assert code == 2 and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and said in stderr, stderr
    assert contents(place) == before


def test_csv_and_page_are_written_both_or_neither(searched, place, monkeypatch):
    """Where a hit's image is gone before it is drawn."""
    searched("--index", "kept")
    search_page.thumbnail.cache_clear()
    before = contents(place)
    monkeypatch.setattr("demo_sdtps.retrieval.search.report",
                        lambda *_: (place / "gallery" / "TI" / "photo 0.jpg").unlink() or "gone")
    code, _, stderr = searched("--index", "kept", "--csv", "hits.csv", "--output", "hits.html")
    assert code == 2 and stderr.startswith(ONE_LINE)
    before.pop("gallery/TI/photo 0.jpg")
    assert contents(place) == before


def test_an_index_of_other_weights_is_refused_and_made_anew_with_rebuild(searched, place, tiny_root):
    searched("--index", "kept", "--top", "2")
    before = contents(place)
    other = checkpoint_file(place.parent / f"{place.name}.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]), classes=7)
    for words in (("--weight", other), ("INPUT.PIXEL_MEAN", "[0,0,0]")):
        code, _, stderr = searched("--index", "kept", *words)
        assert code == 2 and "--rebuild" in stderr and contents(place) == before
    code, stdout, stderr = searched("--index", "kept", "--weight", other, "--rebuild")
    assert code == 0 and "Index kept: 5 triplets (5 new)" in stdout, stderr


def test_an_index_is_used_by_one_command_at_a_time(searched, place):
    with locked(place / "kept" / LOCK, "The index"):
        code, stdout, stderr = searched("--index", "kept")
    assert code == 2 and "The index kept is in use by another process" in stderr and not stdout
    assert not (place / "kept").exists()


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_page_without_scrolling_sideways(searched, place, width):
    searched("--output", "hits.html")
    with headless() as driver:
        page = Page(driver, place / "hits.html")
        page.show(width, "dark")
        assert page.run("return document.documentElement.scrollWidth") <= width and not page.errors()
        assert page.run("return [...document.images].every(image => image.naturalWidth > 0)")
