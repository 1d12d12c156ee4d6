"""The page of demo-sdtps search, and what a browser shows of it."""

import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from browser import CUT, Page, headless, page_data, until
from commands import KEEP_ALL, copy
from PIL import Image
from scipy.special import expit

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.reports import search_page as pages
from demo_sdtps.retrieval import reid
from demo_sdtps.retrieval.search import Hit, SearchResult

SETTINGS = KEEP_ALL


def test_the_page_is_one_file_that_holds_the_images(run_search, search_output, place, monkeypatch):
    words = ("--output", "hits.html", "--top", "3")
    hostile = (place / "gallery").rename(place / "<i>gallery")
    stdout = search_output(*words, gallery=hostile)
    assert "queries: 2, hits of each: 3" in stdout
    page, data = page_data(place / "hits.html")
    assert "<h1>Hits in &lt;i&gt;gallery</h1>" in page and str(place) not in page
    assert "<i>" not in page
    assert not re.search(r"src=\"(?!data:)|url\(|<script src|https?:", page)
    assert [len(query["nearest"]) for query in data["queries"]] == [3, 3]
    names = [data["samples"][query["sample"]]["name"] for query in data["queries"]]
    assert names == ["<i>&0", "<i>&1"]
    shown = {row[0] for query in data["queries"] for row in query["nearest"]}
    assert shown == {*range(len(data["samples"]))} - {query["sample"] for query in data["queries"]}
    assert len(data["thumbnails"]) == len(data["samples"]) and data["modalities"] == [*MODALITIES]
    links = [Path(unquote(link)) for one in data["samples"] for link in one["files"].values()]
    assert len(links) >= 12 and not any(link.is_absolute() for link in links)
    assert all((place / link).is_file() for link in links)
    assert "The page shows" not in page and "taken: no camera.</p>" in page
    for name, most, queries in (("MOST_HITS", 2, 2), ("THUMBNAIL_BYTES", 1, 1)):
        monkeypatch.setattr(pages, name, most)
        stdout = run_search(*words, "--overwrite", gallery=hostile)[1]
        told = f"The page shows {queries} of 2 queries, with at most 2 hits each; --csv writes all"
        assert f"queries: 2, hits of each: 3. {told}\n" in stdout
        assert f"{told}.</p>" in (place / "hits.html").read_text()


@pytest.fixture
def calibrated_page(search_output, place, monkeypatch):
    """The hits of queries of RGB and TI, calibrated with complete triplets alone."""
    fits = {(frozenset({"RGB", "TI"}), frozenset(MODALITIES)): (2.0, 1.0)}
    monkeypatch.setattr(reid, "make_calibrations", lambda *_: {3: fits})
    search_output("--output", "hits.html")
    return place / "hits.html"


def test_the_page_has_the_probabilities_that_are_known(calibrated_page):
    data = page_data(calibrated_page)[1]
    hits = [hit for query in data["queries"] for hit in query["nearest"]]
    for sample, distance, _, probability in hits:
        expected = pytest.approx(expit(1 - 2 * distance), abs=1e-6)
        assert probability == (expected if "NI" in data["samples"][sample]["files"] else None)
    assert data["judged"] and [hit[3] for hit in hits].count(None) == 2


def test_a_probability_that_is_not_known_is_left_out(tmp_path):
    triplet = Triplet(("x.png", None, None))
    hits = [Hit(triplet, 1.5, 2.5, probability) for probability in (float("nan"), 0.25)]
    assert [*map(pages.hit_text, hits)] == ["unknown", "P = 25.0%"]
    pages.write_hits(SearchResult([triplet], [hits], {}, None, []), tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines() == [
        "query,rank,gallery,distance,score,probability",
        "x.png,1,x.png,1.500000,2.500000,",
        "x.png,2,x.png,1.500000,2.500000,0.250000",
    ]


BOXES = """return [...document.querySelectorAll(".near .triplet")].map((box) => {
    const [outer, image] = [box, box.querySelector("img")].map((one) => one.getBoundingClientRect());
    return [Math.round(outer.height), image.width <= outer.width + 1 && image.height <= outer.height + 1];
});"""


BARS = """return [...document.querySelectorAll(".near .share")]
    .map((bar) => parseFloat(getComputedStyle(bar).backgroundSize));"""


@pytest.mark.slow
def test_a_browser_shows_probabilities_and_greys_unknown_ones(calibrated_page):
    with headless() as driver:
        page = Page(driver, calibrated_page)
        hits = page.run("return DATA.queries.flatMap((query) => query.nearest)")
        known = [100 * hit[3] for hit in hits if hit[3] is not None]
        assert page.texts(".near b") == [f"{percent:.1f} %" for percent in known]
        assert page.run(BARS) == pytest.approx(known, abs=0.1)
        assert page.texts(".near .muted") == ["unknown"] * (len(hits) - len(known))


@pytest.mark.slow
def test_a_browser_shows_images_of_any_size_in_boxes_of_one_height(run_search, place, width=400):
    """In pages, with filters; the files over their small images, and links to them."""
    sizes = [(600, 20), (20, 600), (900, 900), (3, 3)] * 9
    for path, size in zip(sorted(place.glob("gallery/*/*")), sizes, strict=False):
        Image.open(path).resize(size).save(path)
    for number in range(2, 12):
        for modality in ("RGB", "TI"):
            folder = place / "query" / modality
            copy(folder / "<i>&0.jpg", folder / f"more {number}.jpg")
    run_search("--output", "pages/hits.html")
    with headless() as driver:
        page = Page(driver, place / "pages" / "hits.html")
        page.show(width, "dark")
        assert page.run(CUT) == []
        assert page.run("return document.documentElement.scrollHeight") < 10 * 1400
        assert not page.errors()
        heights, contained = zip(*page.run(BOXES), strict=True)
        assert len(heights) == 10 * 5 and len(set(heights)) == 1 and all(contained)
        hits = page.run("return DATA.queries.flatMap((query) => query.nearest)")
        distances = np.array([hit[1] for hit in hits])
        assert page.texts(".near b") == [f"{distance:.4f}" for distance in distances[:50]]
        assert page.run(BARS) == pytest.approx(100 * distances[:50] / distances.max(), abs=0.1)
        assert page.texts("#count") == ["Queries 1 to 10 of 12"]
        page.click("#next")
        assert page.texts("#count") == ["Queries 11 to 12 of 12"]
        driver.find_element("id", "by-name").send_keys("<I>")
        assert page.texts(".query a") == ["<i>&0", "<i>&1"]
        page.choose("#sort", "first hit, least alike first")
        first = page.run("return chosenQueries().map((query) => query.nearest[0][1])")
        assert first == sorted(first, reverse=True) and first[0] > first[1]
        page.click(".near .triplet")
        wait = (
            "return [...document.querySelectorAll('dialog .file')].map((one) => one.naturalWidth)"
        )
        # the files, not the small image
        assert until(lambda: {*page.run(wait)} & {600, 20, 900} and 0 not in page.run(wait))
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert len(page.texts("dialog p a")) == len(page.run(wait))
        page.click("dialog figcaption b")
        assert not page.run("return document.querySelector('dialog').open")
        shutil.rmtree(place / "query")
        page.click(".query .triplet")
        # the small one, where the files are gone
        assert until(lambda: page.run(wait) == [])
