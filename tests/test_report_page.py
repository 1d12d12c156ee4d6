"""The page of tools/report.py --html in a browser: what it shows, its filters, and that it needs nothing else."""
import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
from browser import Page, headless, wait_until
from commands import BASELINE, CONFIG, EPOCH, ONE_LINE, SMALL, contents, distance_rounding, squared_distances
from interrupted import call
from layouts import write_msvr310, write_rgbnt100
from numeric import seeded
from PIL import Image
from reference import analysis as plain

from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.extraction import extract_features
from demo_sdtps.evaluation.protocol import make_test_data, normalise
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.checkpoint import save_checkpoint
from demo_sdtps.tools import analyse, report
from demo_sdtps.tools.draw_tokens import kept_patches

pytestmark = pytest.mark.slow

NAME = "<b>run & \"so\" 'on'<i>"
HOSTILE = "<img src=x onerror=document.title='x'>"
BOUNDS = ("--queries", "25", "--points", "30", "--thumbnails", "31")
QUERIES, LISTED, POINTS = 32, 25, 30
MISSING = "tools/report.py --html needs plotly; install them by pip install -e '.[report]'."


def make_run(folder, root, *opts, config=CONFIG):
    """A finished run of a model as it is made → the folder."""
    cfg = load_cfg(config, ["DATASETS.ROOT_DIR", str(root), *SMALL, "OUTPUT_DIR", str(folder), *opts])
    torch.manual_seed(seeded(3))
    save_checkpoint(folder / "last.pth", cfg, make_model(cfg, 6, 8), 2)
    (folder / "config.yml").write_text(cfg.dump())
    untrained = {"epoch": 0, "patterns": EPOCH["patterns"]}
    (folder / "metrics.json").write_text(json.dumps([untrained, EPOCH, EPOCH | {"epoch": 2}]))
    return folder


@pytest.fixture(scope="module")
def made(tiny_root, tmp_path_factory):
    """A page of a model with slimming and SDTPS, bounded, and the numbers of tools/analyse.py: → (file, numbers, cfg).

    The names of the run, of a folder on the way to the data and of an image are hostile.
    """
    folder = tmp_path_factory.mktemp("page")
    root = shutil.copytree(tiny_root, folder / "a<" / "script><script>document.title='x'</script>" / "data")
    for modality in MODALITIES:
        test = root / "RGBNT201" / "test" / modality
        image = sorted(test.iterdir())[QUERIES // 2]
        image.rename(test / f"{image.stem}{HOSTILE}.jpg")
    # Without cameras, which would decide the distances of a model that is not trained.
    run = make_run(folder / NAME, root, "MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]", "MODEL.SIE_CAMERA", "False")
    assert call(["--run", run, "--html", run / "report.html", *BOUNDS], report.main) == 0
    words = ["--weight", run / "last.pth", "--json", folder / "x.json", "--output", folder / "x.png", *BOUNDS[:4]]
    assert call(words, analyse.main) == 0
    cfg = load_cfg(run / "config.yml", ["TEST.WEIGHT", str(run / "last.pth")])
    return run / "report.html", json.loads((folder / "x.json").read_text()), cfg


@pytest.fixture(scope="module")
def driver():
    with headless() as driver:
        yield driver


@pytest.fixture
def page(driver, made):
    page = Page(driver, made[0])
    yield page
    assert page.errors() == []


def lists_of(numbers, sign=0):
    """What `Page.shown` gives of the numbers of tools/analyse.py: in the order of the split, or by AP, ascending for 1 and
    descending for -1."""
    queries = [numbers["queries"][rank_list["query"]] for rank_list in numbers["rank_lists"]]
    found = []
    for query in sorted(queries, key=lambda query: sign * query["average_precision"]):
        sample = numbers["samples"][query["sample"]]
        ap = float(f"{100 * query['average_precision']:.1f}")
        found.append((ap, sample["identity"], sample["camera"] + 1, query["first_match"]))
    return found


def test_it_needs_nothing_else(page, made):
    assert page.run("return performance.getEntriesByType('resource').map((one) => one.name.slice(0, 5))"
                    ".filter((name) => name !== 'data:')") == []
    text = made[0].read_text(encoding="utf-8")
    assert "default-src 'none'" in text and made[0].stat().st_size < 15 << 20
    assert not list(made[0].parent.glob("*.part"))


def test_names_are_shown_as_they_are(page, made):
    assert page.driver.title == f"{NAME}: report" and page.texts("h1") == [NAME]
    assert page.run("return document.querySelectorAll('main b img, h1 b, img[src=x]').length") == 0
    assert page.texts("main > p")[0].startswith(f"RGBNT201 in {made[2].DATASETS.ROOT_DIR}, {QUERIES} queries, ")
    names = page.run("return DATA.samples.map((sample) => sample.name)")
    (place,) = (place for place, name in enumerate(names) if HOSTILE in name)
    page.run(f"showPoint(DATA.scatter.samples.indexOf({place}))")
    assert page.texts("#point figcaption")[0].endswith(f"{HOSTILE}.jpg")


def test_what_is_left_out_is_said(page):
    said = page.texts("main > p")[1]
    for sentence in (f"{LISTED} of {QUERIES} queries have a rank list (--queries).",
                     f"{POINTS} of {QUERIES} samples are in the scatter plot (--points).",
                     "31 of 32 triplets of the page are shown with their images (--thumbnails)."):
        assert sentence in said
    assert page.run("return DATA.thumbnails.length") == 31
    assert page.run("return figure(31, '').querySelector('.triplet').textContent") == "image left out"


def between(value, least, most):
    """But for the rounding of float64."""
    return least - 1e-12 <= value <= most + 1e-12


def test_the_numbers_are_those_of_plain_loops(made):
    """Roundings may exchange samples that are all but equally near: numbers lie between those where matches are nearer, and
    farther, by what roundings change."""
    _, numbers, cfg = made
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    features = normalise(cfg, extract_features(cfg, model, data.loader)[0][cfg.TEST.RETURN_PATTERN])
    exact, rounding = squared_distances(features)[data.query][:, data.gallery], distance_rounding(features)
    sides = (data.query, data.gallery)
    ids, cameras = ([data.labels(name, side).tolist() for side in sides] for name in ("identity", "camera"))
    is_match = torch.tensor(ids[0])[:, None] == torch.tensor(ids[1])
    low, high = ((exact + sign * 2 * rounding * is_match).tolist() for sign in (1, -1))
    assert [sample["paths"] for sample in numbers["samples"]] == [list(sample.paths) for sample in data.samples]
    lows, highs = ([plain.average_precision(one) for one in plain.rankings(found, ids, cameras)] for found in (low, high))
    averages = [query["average_precision"] for query in numbers["queries"]]
    assert all(map(between, averages, lows, highs))
    assert between(numbers["cases"]["nothing"]["3"]["mAP"], np.mean(lows), np.mean(highs))
    assert averages[numbers["worst_queries"][0]] == min(averages)
    rankings = plain.rankings(exact.tolist(), ids, cameras)
    for rank_list in numbers["rank_lists"]:
        wanted = [distance for distance, *_ in rankings[rank_list["query"]][:10]]
        assert [one["distance"] for one in rank_list["nearest"]] == pytest.approx(wanted, abs=rounding)
        assert all(one["is_match"] == (ids[1][one["sample"]] == ids[0][rank_list["query"]]) for one in rank_list["nearest"])
    (every, low), (_, high) = (plain.camera_matrix(found, ids, cameras, cameras) for found in (low, high))
    assert numbers["camera_matrix"]["cameras"] == every
    for row in zip(numbers["camera_matrix"]["mAP"], low, high, strict=True):
        assert all(found is least is most is None or between(found, least, most)
                   for found, least, most in zip(*row, strict=True))
    edges = numbers["distances"]["edges"]
    for name, counts in zip(("positives", "negatives"), plain.histogram(exact.tolist(), ids, cameras, edges), strict=True):
        for found, count, *ends in zip(numbers["distances"][name], counts, edges, edges[1:], strict=False):
            assert abs(found - count) <= sum(int(((exact - edge).abs() < rounding).sum()) for edge in ends)


def test_the_numbers_are_drawn(made):
    with Image.open(made[0].parent.parent / "x.png") as image:
        pixels = np.asarray(image.convert("L"), dtype=np.float32)
    assert min(part.std() for row in np.array_split(pixels, 3) for part in np.array_split(row, 4, axis=1)) > 10


def test_tables(page, made):
    numbers = made[1]
    for value in "123":
        page.click(f"[name=pattern][value='{value}'] + span")
        shown = page.run("return [...document.querySelectorAll('.missing:not([hidden]) tbody tr')]"
                         ".map((row) => [...row.cells].map((cell) => cell.textContent))")
        wanted = [[f"{100 * number:.1f}" for number in record[value].values()] for record in numbers["cases"].values()]
        assert [row[1:] for row in shown[:-1]] == wanted and shown[-1][0] == "mean of the six"
        means = np.mean([list(record[value].values()) for record in list(numbers["cases"].values())[1:]], axis=0)
        assert [float(cell) for cell in shown[-1][1:]] == pytest.approx(100 * means, abs=0.051)
    assert page.texts("#results table:first-of-type tbody th")[:3] == ["1 original", "2 enhanced", "3 both"]
    assert page.texts("#results .scroll:first-child thead th")[-1] == "mAP untrained"
    matrix = [["" if value is None else f"{100 * value:.1f}" for value in row] for row in numbers["camera_matrix"]["mAP"]]
    assert page.texts(".matrix td") == [cell for row in matrix for cell in row]
    assert [row[place] for place, row in enumerate(matrix)] == [""] * 4


def test_plots(page, made):
    numbers = made[1]

    def plotted(name, key, place=0):
        return page.run(f"return Array.from(document.getElementById('{name}').data[{place}].{key})")

    identities = numbers["identities"]
    assert plotted("identity-plot", "x") == [str(one["identity"]) for one in identities]
    assert plotted("identity-plot", "y") == pytest.approx([100 * one["mAP"] for one in identities])
    assert [plotted("distance-plot", "customdata", place) for place in (0, 1)] == [
        numbers["distances"]["positives"], numbers["distances"]["negatives"]]
    assert plotted("training", "y") == [2.0, 2.0] and plotted("testing", "x") == [0, 1, 2]
    assert len(page.texts(".plot .main-svg:first-of-type")) == 5
    page.click("#identities summary")
    assert page.texts("#identities tbody th") == [str(one["identity"]) for one in identities]


def test_every_filter_of_the_rank_lists(page, made):
    rows = lists_of(made[1])
    assert page.shown() == lists_of(made[1], 1) and len(rows) == LISTED
    page.choose("#sort", "AP, highest first")
    assert page.shown() == lists_of(made[1], -1)
    page.choose("#sort", "order of the split")
    assert page.shown() == rows
    page.click("#failures")
    failures = [row for row in rows if row[3] > 1]
    assert page.shown() == failures and 0 < len(failures) < len(rows)
    identity, camera = failures[-1][1:3]
    page.choose("#by-identity", str(identity))
    assert page.shown() == [row for row in failures if row[1] == identity]
    page.choose("#by-camera", str(camera))
    assert page.shown() == [row for row in failures if row[1:3] == (identity, camera)]
    page.click("#failures")
    assert page.shown() == [row for row in rows if row[1:3] == (identity, camera)]
    page.choose("#by-identity", "all")
    assert page.shown() == [row for row in rows if row[2] == camera]
    page.click("#filters [type=reset]")
    wait_until(lambda: page.texts("#count") == [f"Queries 1 to 10 of {LISTED}"])
    page.click("#next")
    assert page.texts("#count") == [f"Queries 11 to 20 of {LISTED}"] and page.texts("#pages") == ["Page 2 of 3"]
    page.click("#previous")
    assert page.texts("#count") == [f"Queries 1 to 10 of {LISTED}"]


def test_rank_lists_and_worst_queries(page, made):
    numbers = made[1]
    worst = numbers["worst_queries"]
    assert len(worst) == 20 and page.texts("#worst-list .query b") == [
        f"AP {100 * numbers['queries'][query]['average_precision']:.1f} %" for query in worst]
    by_query = {rank_list["query"]: rank_list["nearest"] for rank_list in numbers["rank_lists"]}
    first = page.run("return [...document.querySelectorAll('#rank-list article:first-child .near figure')]"
                     ".map((one) => [one.className, one.querySelector('b').textContent, one.title])")
    assert len(first) == 10
    for (style, text, name), one in zip(first, by_query[worst[0]], strict=True):
        assert style == ("sample is-hit" if one["is_match"] else "sample is-miss")
        assert float(text.removeprefix("d = ")) == pytest.approx(one["distance"], rel=5e-3)
        assert name == os.path.basename(numbers["samples"][one["sample"]]["paths"][0])


def test_kept_patches_are_switched_on_and_off(page, made):
    model, splits = load_model_and_data(made[2])
    samples = {os.path.basename(sample.paths[0]): sample for sample in splits["query"]}
    query = "document.querySelector('#rank-list .query')"
    masks = kept_patches(made[2], model, [samples[page.run(f"return {query}.title")]])
    pixels = (f"const canvas = {query}.querySelector('canvas'); return [canvas.hidden, canvas.width, canvas.height, [...canvas"
              ".getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data].filter((_, place) => place % 4 === 3)]")
    assert page.texts("#kept option") == ["off", *masks] and set(masks) == {"stage 1", "SDTPS"}
    for name, by_modality in masks.items():
        page.choose("#kept", name)
        hidden, width, height, alpha = page.run(pixels)
        kept = torch.cat([by_modality[modality][0] for modality in MODALITIES], dim=1)
        assert not hidden and (height, width) == kept.shape
        assert [value == 0 for value in alpha] == (kept > 0).flatten().tolist() and 0 < kept.sum() < kept.numel()
    # Those of later pages too.
    page.click("#next")
    assert page.run("return document.querySelectorAll('canvas[data-sample]:not([hidden])').length") > 100
    page.choose("#kept", "off")
    assert page.run("return document.querySelectorAll('canvas[data-sample]:not([hidden])').length") == 0


def test_the_scatter_plot_shows_images(page, made):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    scatter = made[1]["scatter"]
    for method in ("t-SNE", "PCA"):
        page.click(f"[name=method][value='{method}'] + span")
        trace = page.run("const { x, y } = document.getElementById('scatter-plot').data[0]; return [x, y]")
        assert list(map(list, zip(*trace, strict=True))) == scatter[method]
    page.click("[name=colour][value=camera] + span")
    assert page.run("return document.getElementById('scatter-plot').data.map((trace) => trace.name)")[:4] == [
        "camera 1", "camera 2", "camera 3", "camera 4"]
    page.click("[name=colour][value=identity] + span")
    assert page.texts("#point") == ["No point is chosen."]
    # A point with nothing beside it.
    places = np.array(scatter["PCA"])
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 1e9 * np.eye(POINTS)
    for place, act in zip(apart.min(axis=1).argsort()[-2:].tolist(), ("move", "click"), strict=True):
        point = page.driver.find_elements("css selector", "#scatter-plot .scatterlayer .trace:first-child .point")[place]
        page.run("document.getElementById('features').scrollIntoView()")
        chain = ActionChains(page.driver).move_to_element(point)
        (chain.click() if act == "click" else chain).perform()
        sample = made[1]["samples"][scatter["samples"][place]]
        text = f"id\u00a0{sample['identity']}, camera\u00a0{sample['camera'] + 1}{os.path.basename(sample['paths'][0])}"
        wait_until(lambda text=text: page.texts("#point figcaption") == [text])
    assert page.run("return document.querySelector('#point img').naturalWidth") == 3 * 16
    # Rings around the samples of its identity.
    same = sum(made[1]["samples"][one]["identity"] == sample["identity"] for one in scatter["samples"])
    assert page.run("return document.getElementById('scatter-plot').data.at(-1).x.length") == same
    before = page.texts("#point figcaption")
    page.driver.find_element("id", "scatter-plot").send_keys(Keys.ARROW_RIGHT)
    assert page.texts("#point figcaption") != before
    page.driver.find_element("id", "scatter-plot").send_keys(Keys.ARROW_LEFT)
    assert page.texts("#point figcaption") == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_readable_in_every_window(page, width, scheme):
    """No horizontal scrolling with everything open, in the system's colours and in the others."""
    page.show(width, scheme)
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    page.choose("#kept", "SDTPS")
    for expected in (scheme, "light" if scheme == "dark" else "dark"):
        assert page.run("return document.documentElement.dataset.theme") == expected
        assert page.run("const { scrollWidth, clientWidth } = document.documentElement; return scrollWidth - clientWidth") == 0
        page.click("#theme")


def test_a_missing_library_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    code, stdout, stderr = command(report.main, "--config_file", CONFIG, "OUTPUT_DIR", tmp_path, "--html", tmp_path / "x.html")
    assert code == 2 and not stdout and stderr == f"{ONE_LINE}{MISSING}\n" and contents(tmp_path) == {}


OTHERS = {
    "vehicles in one file, no patch dropped": (write_rgbnt100, BASELINE, {
        "DATASETS.NAMES": "RGBNT100", "INPUT.SIZE_TEST": "[16,32]", "INPUT.SIZE_TRAIN": "[16,32]"}),
    "by scene, re-ranked, one modality": (write_msvr310, CONFIG, {
        "DATASETS.NAMES": "MSVR310", "TEST.RE_RANKING": "yes", "TEST.MISS": "nt", "TEST.RETURN_PATTERN": "2"}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_data_and_models(driver, command, tmp_path, kind):
    write, config, more = OTHERS[kind]
    found = write(tmp_path)
    run = make_run(tmp_path / "run", tmp_path, *(word for pair in more.items() for word in pair), config=config)
    code, stdout, stderr = command(report.main, "--run", run, "--html", tmp_path / "x.html")
    assert code == 0 and f"page:             {tmp_path / 'x.html'}" in stdout.splitlines(), stderr
    page = Page(driver, tmp_path / "x.html")
    page.show(400, "dark")
    assert page.errors() == [] and page.run("return document.querySelectorAll('#rank-list .near figure').length") > 20
    wide = write is write_rgbnt100
    assert (page.texts("#kept option") == []) == wide
    assert page.run("const [image] = document.images; return [image.naturalWidth, image.naturalHeight]") == (
        [32, 3 * 16] if wide else [3 * 16, 32])
    matrix = np.array(page.texts(".matrix td")).reshape(3, 3)
    assert (matrix.diagonal() == "").all() == wide  # other scenes of a camera count
    assert ("k-reciprocal distance" in page.texts("#ranks > p")[0]) != wide
    assert all((", scene\u00a0" in text) != wide for text in page.texts("#rank-list figcaption"))
    assert page.run("return DATA.queries.length") == len(found["query"])
