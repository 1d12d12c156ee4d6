"""The page of demo-sdtps report --html: its numbers, and in a browser what it shows, and that it needs nothing else."""

import base64
import html
import io
import json
import shutil

import numpy as np
import pytest
import torch
from browser import CUT, Page, headless, page_data, until
from commands import BASELINE, CONFIG, EPOCH, call, make_run, read_scores
from PIL import Image
from triplets import write_msvr310, write_rgbnt100

from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.evaluation import protocol
from demo_sdtps.evaluation.tables import MEASURES
from demo_sdtps.reports.figures import kept_patches

pytestmark = pytest.mark.slow

NAME = "<b>run & \"so\" 'on'<i>"
HOSTILE = "<img src=x onerror=document.title='x'>"
BOUNDS = ("--queries", "25", "--points", "30", "--thumbnails", "31")
QUERIES, LISTED = 32, 25


@pytest.fixture(scope="module")
def analysed_run(tiny_root, tmp_path_factory):
    """A page of a model with slimming and SDTPS, bounded, and the numbers of demo-sdtps analyse: → (file, numbers, cfg). Names
    of the run, of a folder of the data and of an image are hostile."""
    folder = tmp_path_factory.mktemp("page")
    root = shutil.copytree(
        tiny_root, folder / "a<" / "script><script>document.title='x'</script>" / "data"
    )
    for modality in MODALITIES:
        test = root / "RGBNT201" / "test" / modality
        image = sorted(test.iterdir())[QUERIES // 2]
        image.rename(test / f"{image.stem}{HOSTILE}.jpg")
    # Without cameras, which would decide the distances of a model that is not trained.
    words = "MODEL.SLIM_BLOCKS [1] MODEL.SLIM_KEEP [0.5] MODEL.SIE_CAMERA False"
    run = make_run(folder / NAME, root, *words.split())
    assert call(["--run", run, "--html", run / "report.html", *BOUNDS], evaluate.report) == 0
    words = ["--weight", run / "last.pth", "--json", folder / "x.json", *BOUNDS[:4]]
    assert call(words, evaluate.analyse) == 0
    cfg = load_cfg(run / "config.yml", ["TEST.WEIGHT", str(run / "last.pth")])
    return run / "report.html", json.loads((folder / "x.json").read_text()), cfg


@pytest.fixture(scope="module")
def driver():
    with headless() as driver:
        yield driver


@pytest.fixture
def page(driver, analysed_run):
    page = Page(driver, analysed_run[0])
    yield page
    assert page.errors() == []


def test_the_page_has_the_numbers_of_the_analysis_and_the_kept_patches(analysed_run):
    file, numbers, cfg = analysed_run
    text, data = page_data(file)
    assert "default-src 'none'" in text and cfg.DATASETS.ROOT_DIR not in html.unescape(text)
    for name in ("queries", "rank_lists", "worst_queries", "scatter"):
        assert data[name] == numbers[name]
    assert len(data["rank_lists"]) <= LISTED and len(data["thumbnails"]) == 31
    worst = [numbers["queries"][number]["sample"] for number in numbers["worst_queries"]]
    assert {*map(str, worst)} <= {*data["thumbnails"]}  # the most needed first
    model, splits = protocol.load_model_and_data(cfg)
    data_of = protocol.make_test_data(cfg, **splits)
    for index, labels in data["samples"].items():
        sample = data_of.samples[int(index)]
        assert (labels["identity"], labels["camera"]) == (sample.identity, sample.camera + 1)
    index = next(iter(data["thumbnails"]))
    grids = kept_patches(cfg, model, [data_of.samples[int(index)]])
    assert list(data["kept"]["bits"]) == list(grids) == ["stage 1", "SDTPS"]
    for name, by_modality in grids.items():
        kept = torch.cat([by_modality[modality].flatten() for modality in MODALITIES])
        assert [*map(int, data["kept"]["bits"][name][index])] == kept.tolist()
    assert numbers["cross_modal"] == protocol.evaluate_cross_modal(cfg, model, data_of)
    nothing = numbers["cases"]["nothing"]["3"]
    assert numbers["cross_modal"]["mAP"]["RNT"]["RNT"] == nothing["mAP"]


def expected_lists(numbers, sign=0):
    """What `Page.shown` gives of the numbers of demo-sdtps analyse: in the order of the split, or with `sign` 1 by AP."""
    queries = [numbers["queries"][rank_list["query"]] for rank_list in numbers["rank_lists"]]
    actual = []
    for query in sorted(queries, key=lambda query: sign * query["average_precision"]):
        sample = numbers["samples"][query["sample"]]
        ap = float(f"{100 * query['average_precision']:.1f}")
        actual.append((ap, sample["identity"], sample["camera"] + 1, query["first_match"]))
    return actual


def test_the_page_in_a_browser(page, analysed_run):
    """It needs no other file, shows names as they are, the numbers of the cases, sets and cameras, and kept patches."""
    numbers = analysed_run[1]
    files = "return performance.getEntriesByType('resource').map((one) => one.name)"
    assert all(name.startswith("data:") for name in page.run(files))
    assert page.driver.title == f"{NAME}: report" and page.texts("h1") == [NAME]
    assert page.run("return document.querySelectorAll('main b img, h1 b, img[src=x]').length") == 0
    page.click("[name=pattern][value='2'] + span")
    shown = page.run(
        "return [...document.querySelectorAll('.missing:not([hidden]) tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert [row[1:] for row in shown[:-1]] == [
        [f"{100 * record['2'][name]:.1f}" for name in MEASURES]
        for record in numbers["cases"].values()
    ]
    sets = [row.values() for rows in numbers["cross_modal"].values() for row in rows.values()]
    values = [value for row in sets for value in row]
    texts = ["–" if value is None else f"{100 * value:.1f}" for value in values]
    assert page.texts("#cross-modal .matrix td") == texts
    assert page.texts("#cross-modal thead th")[1:8] == [*protocol.modality_sets(MODALITIES)]
    query = "document.querySelector('#rank-list .query')"
    for name, bits in page.run("return DATA.kept.bits").items():
        page.choose("#kept", name)
        alpha = page.run(
            f"const canvas = {query}.querySelector('canvas'); return [...canvas.getContext('2d')"
            ".getImageData(0, 0, canvas.width, canvas.height).data].filter((_, place) => place % 4 === 3)"
        )
        kept = np.array([*bits[page.run(f"return {query}.dataset.index")]]).reshape(3, 8, 4)
        assert [value == 0 for value in alpha] == (np.hstack(kept) == "1").flatten().tolist()


def test_nothing_is_cut_at_any_width(page):
    """Nor where a card becomes narrower and the window does not."""
    for width, scheme in ((390, "light"), (768, "dark"), (1400, "light")):
        page.show(width, scheme)
        assert page.run(CUT) == []
        page.run("document.querySelector('main').style.width = '90%'")
        assert until(lambda: page.run(CUT) == [])


def test_the_filters_of_the_rank_lists(page, analysed_run):
    rows = expected_lists(analysed_run[1])
    assert page.shown() == expected_lists(analysed_run[1], 1)
    page.choose("#sort", "order of the split")
    page.click("#failures")
    failures = [row for row in rows if row[3] > 1]
    assert page.shown() == failures and 0 < len(failures) < len(rows)
    identity, camera = failures[-1][1:3]
    page.choose("#by-identity", str(identity))
    page.choose("#by-camera", str(camera))
    assert page.shown() == [row for row in failures if row[1:3] == (identity, camera)]


@pytest.fixture
def other_run(own_root, tmp_path):
    """A run on other data: those of `tiny_root` without the triplets of a test identity."""
    for path in own_root.glob("RGBNT201/test/*/000010_*"):
        path.unlink()
    other = make_run(tmp_path / "other", own_root, "SOLVER.SEED", "7")
    (other / "metrics.json").write_text(json.dumps([EPOCH, EPOCH | {"epoch": 2, "loss": 1.0}]))
    return other


def test_runs_are_compared(driver, analysed_run, other_run, tmp_path, command):
    """Each on its own data, with differences to the first, and with the keys in which they differ."""
    file, numbers, _ = analysed_run
    words = ["--run", file.parent, "--run", other_run, *BOUNDS]
    assert call([*words, "--html", tmp_path / "x.html"], evaluate.report) == 0
    weight = ("--weight", other_run / "last.pth", "--json", tmp_path / "other.json")
    assert command(test_net.main, *weight)[0] == 0
    page = Page(driver, tmp_path / "x.html")
    cells = ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    rows = "return [...document.querySelectorAll('[data-pattern]:not([hidden])[data-name=compared] tr')]"
    page.click("[name=compared][value='1'] + span")
    first, second = numbers["cases"]["nothing"]["1"], read_scores(tmp_path / "other.json")["1"]
    percents = [[f"{100 * row[name]:.1f}" for name in MEASURES] for row in (first, second)]
    differences = [f"{100 * (second[name] - first[name]):+.1f}" for name in ("mAP", "Rank-1")]
    assert page.run(rows + cells) == [
        ["run", "mAP", "Rank-1", "Rank-5", "Rank-10", "Δ mAP", "Δ Rank-1", "test split"],
        [str(file.parent), *percents[0], "", "", "Synthetic in data, 32 queries"],
        [str(other_run), *percents[1], *differences, "Synthetic in own, 24 queries"],
    ]
    keys = page.run(
        f"return [...document.querySelectorAll('.tall [data-name=compared] tbody tr')]{cells}"
    )
    assert keys == [
        ["DATASETS.ROOT_DIR", "data", "own"],
        ["MODEL.SIE_CAMERA", "False", "True"],
        ["MODEL.SLIM_BLOCKS", "[1]", "[]"],
        ["MODEL.SLIM_KEEP", "[0.5]", "[]"],
        ["SOLVER.SEED", "1111", "7"],
    ]
    losses = page.run("return document.getElementById('compared-loss').data.map((one) => one.y)")
    assert losses == [[2, 2], [2, 1]] and page.errors() == []
    page.show(390, "light")
    assert page.run(CUT) == []


def test_the_run_whose_data_are_missing_is_named(analysed_run, other_run, own_root, refusal):
    own_root.rename(own_root.with_name("away"))
    words = ("--run", analysed_run[0].parent, "--run", other_run, "--html", "x.html")
    assert str(other_run) in refusal(evaluate.report, *words)


OTHERS = {
    "vehicles in one file, no patch dropped": (
        write_rgbnt100,
        BASELINE,
        "DATASETS.NAMES RGBNT100 INPUT.SIZE_TEST [16,32] INPUT.SIZE_TRAIN [16,32]",
    ),
    "by scene, re-ranked, one modality": (
        write_msvr310,
        CONFIG,
        "DATASETS.NAMES MSVR310 TEST.RE_RANKING yes TEST.MISS nt TEST.RETURN_PATTERN 2",
    ),
    "RGB alone": (write_msvr310, CONFIG, "DATASETS.NAMES MSVR310 MODEL.MODALITIES [RGB]"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_data_and_models(tmp_path, kind):
    write, config, words = OTHERS[kind]
    actual = write(tmp_path)
    run = make_run(tmp_path / "run", tmp_path, *words.split(), config=config)
    assert call(["--run", run, "--html", tmp_path / "x.html"], evaluate.report) == 0
    text, data = page_data(tmp_path / "x.html")
    wide, alone = write is write_rgbnt100, kind == "RGB alone"
    text = text[text.index("<main") : text.index("</main>")]
    # nothing on several modalities where there is one
    assert ("left to right" in text or "top to bottom" in text) != alone
    assert ('id="cross-modal"' in text or 'class="missing"' in text) != alone
    assert len(data["queries"]) == len(actual["query"]) and data["stacked"] == wide
    assert (data["kept"] is None) == wide and data["key"] == ("camera" if wide else "scene")
    image = Image.open(io.BytesIO(base64.b64decode(next(iter(data["thumbnails"].values())))))
    assert image.size == ((32, 3 * 16) if wide else (16 if alone else 3 * 16, 32))
