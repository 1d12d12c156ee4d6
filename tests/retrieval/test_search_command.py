"""demo-sdtps search: hits as CSV, page and table, the index it keeps, and what it refuses."""

import shlex
import shutil

import pytest
from commands import (
    CONFIG,
    KEEP_ALL,
    ONE_LINE,
    assert_same_hits,
    checkpoint_file,
    cli_args_for,
    copy,
    read_rows,
)
from PIL import Image

import demo_sdtps
from demo_sdtps.config import MODALITIES, load_cfg
from tests.reference import cross_modal

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = KEEP_ALL


def triplets(folder):
    """Paths of RGB, NI and TI by name, None for a missing one; of a folder of JPEG files."""
    sides = [{path.name: path for path in (folder / name).glob("*")} for name in MODALITIES]
    return {name: [side.get(name) for side in sides] for name in sorted(set().union(*sides))}


def present(paths):
    """Names of the modalities that a triplet has."""
    return {name for name, path in zip(MODALITIES, paths, strict=True) if path}


@pytest.mark.parametrize("how", ["shared", "all"])
def test_hits_are_those_of_the_extractors_features(run_search, weights, place, how):
    """Of queries in RGB and TI, by slow distances of what is present in each triplet."""
    words = ("--csv", "hits.csv", "--top", "4", "--return_pattern", 1)
    code, stdout, stderr = run_search(*words, "TEST.CROSS_MODAL_DISTANCE", how)
    assert code == 0 and "WARNING" not in stderr, stderr
    first, told, end = stdout.splitlines()
    assert first.endswith("5 triplets (5 new)") and told.endswith("no camera")
    assert end == "Wrote hits.csv, hits: 8"
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    sides = [triplets(place / side) for side in ("query", "gallery")]
    features = [
        reid.features(*zip(*side.values(), strict=True), return_pattern=1).values for side in sides
    ]
    sets = [[present(paths) for paths in side.values()] for side in sides]
    parts = (side.astype(float).reshape(len(side), 3, -1).tolist() for side in features)
    sources = [(name,) for name in MODALITIES]
    distances = cross_modal.distances(*parts, sources, *sets, how)
    expected = [sorted(zip(line, sides[1], strict=True))[:4] for line in distances]
    header, *rows = read_rows("hits.csv")
    assert header == ["query", "rank", "gallery", "distance"]
    lines = [
        (f"query/RGB/{query}", str(rank), f"gallery/RGB/{name}", distance)
        for query, hits in zip(sides[0], expected, strict=True)
        for rank, (distance, name) in enumerate(hits, start=1)
    ]
    assert_same_hits(rows, lines)


def test_a_condition_leaves_some_of_the_gallery(run_search, search_output):
    words = ("--index", "kept", "--top", 5, "--overwrite", "--csv")
    search_output(*words, "all.csv")
    where = "present LIKE '%NI%' AND name <> 'photo 3'"
    assert "5 triplets (no change)" in search_output(*words, "some.csv", "--where", where)
    left_out = ("photo 1.jpg", "photo 3.jpg")
    expected = [row for row in read_rows("all.csv")[1:] if not row[2].endswith(left_out)]
    actual = read_rows("some.csv")[1:]
    assert [row[::2] for row in actual] == [row[::2] for row in expected] and len(actual) == 6
    for where in ("camera = 1", "name <> 'x')) AND name = 'y'", "cast(name as int) = 1"):
        code, _, stderr = run_search("--index", "kept", "--where", where)
        assert code == 2 and stderr.startswith(ONE_LINE + "The filter") and stderr.count("\n") == 1
    words = ("--index", "kept", "--pattern", r"photo (?P<camera>[24])", "--where", "camera <> 2")
    stdout = search_output(*words)
    assert "Left out by --where: 3 triplets, which lack a label" in stdout
    assert "photo 4" in stdout and "photo 2" not in stdout and "photo 1" not in stdout
    assert "(3 without a label" in run_search(*words[:-1], "camera > 4")[2]
    # nor is the index replaced by one without labels, as the condition does not fit that
    assert run_search("--index", "kept", *words[-2:])[0] == 2
    assert "(no change)" in search_output(*words)


def test_further_pages_and_frames_are_counted(search_output, place, caplog):
    page, other = (Image.new("L", (16, 32), grey) for grey in (0, 255))
    for name in ("x.tif", "y.gif"):
        page.save(place / "gallery" / "RGB" / name, save_all=True, append_images=[other, page])
    search_output()
    assert "4 pages or frames of images after the first" in caplog.text


def test_a_query_without_a_modality_in_common_has_no_hit(search_output, place, files):
    """Which is told; the distance of all columns compares all."""
    for modality in ("RGB", "TI"):
        shutil.rmtree(place / "gallery" / modality)
    stdout = search_output()
    assert "2 of 2 (RGB+TI)" in stdout and "photo" not in stdout
    assert "gallery/NI/photo" in search_output("TEST.CROSS_MODAL_DISTANCE", "all")
    copy(files["ni"][0], place / "query" / "NI" / "<i>&1.jpg")
    assert "1 of 2 (RGB+TI)" in search_output("--csv", "x.csv")
    assert {row[0] for row in read_rows("x.csv")[1:]} == {"query/RGB/<i>&1.jpg"}


def test_an_image_stands_alone_among_files_that_are_no_siblings(search_output, place, files):
    for name in ("mine.jpg", "other.jpg", "other.png"):
        copy(files["ti"][0], place / "downloads" / name)
    assert "downloads/mine.jpg" in search_output("--modality", "TI", query="downloads/mine.jpg")


def test_re_ranking_is_told(search_output, place):
    words = "--re_rank 9 --top 2 --csv x.csv --output x.html"
    search_output(*shlex.split(words))
    assert "k-reciprocal distance of re-ranking" in (place / "x.html").read_text(encoding="utf-8")
    assert all(0 <= float(row[3]) <= 1 for row in read_rows("x.csv")[1:])


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--gallery", "galery"], "galery"), (["--query", "query/RGB"], "query/RGB")],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(search_refusal, place, words, named):
    (place / "query" / "RGB" / "x.txt").touch()
    assert named in search_refusal(*words)


def test_an_index_of_other_weights_is_refused_and_made_anew_with_rebuild(
    search_refusal, search_output, place, tiny_root
):
    search_output("--index", "kept", "--top", "2")
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root)[2:])
    other = checkpoint_file(place.parent / f"{place.name}.pth", cfg, classes=7)
    for words in (("--weight", other), ("INPUT.PIXEL_MEAN", "[0,0,0]")):
        assert "--rebuild" in search_refusal("--index", "kept", *words)
    assert "Index kept: 5 triplets (5 new)" in search_output(
        "--index", "kept", "--weight", other, "--rebuild"
    )
