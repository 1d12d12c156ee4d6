"""Features of own images: `demo_sdtps.load`."""

import shutil
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import BASELINE, FUSION, KEEP_ALL, SHOWN, checkpoint_file, cli_args_for, file_cameras
from numeric import assert_close, assert_order, shift_seed, tolerance
from PIL import Image
from ranking_cases import OWN
from tiny import SHALLOW

import demo_sdtps
from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.modeling.modalities import SUBSETS
from tests.reference import cross_modal as plain
from tests.reference import search as reference

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = (*KEEP_ALL, *FUSION)  # SDTPS, HDM and ATMoE
SETS = ("r", "n", "t", "rn", "rt", "nt", "rnt")


@pytest.fixture(scope="module")
def reid(weights):
    return demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")


def assert_same(actual, expected):
    """Both by the model, in batches of different sizes."""
    assert_close(np.asarray(actual), np.asarray(expected), *SHALLOW, *SHALLOW)


@pytest.fixture
def export_pattern(exported_arrays, weights):
    """Call demo-sdtps export: → the arrays that it writes of this pattern."""
    return partial(exported_arrays, "--weight", weights, "--normalise", "--return_pattern")


@pytest.mark.parametrize("pattern", [1, 3])
def test_features_with_the_camera_are_those_of_export_features(
    reid, files, export_pattern, pattern
):
    actual = reid.features(**files, return_pattern=pattern, camera=file_cameras(files))
    assert actual.values.dtype == np.float32
    assert actual.shape == (SHOWN, reid.widths[pattern])
    assert_same(actual, export_pattern(pattern)["features"][:SHOWN])
    assert_close(
        np.linalg.norm(actual.values.astype(float), axis=1), np.ones(SHOWN), reid.widths[pattern], 1
    )


@pytest.mark.parametrize("missing", [("ni",), ("rgb", "ti")], ids=str)
def test_a_missing_modality_is_that_of_the_evaluation(reid, files, export_pattern, missing):
    """For all triplets by None in place of the images, and for some of them by None among the images."""
    cameras, rest = (
        file_cameras(files),
        {name: files[name] for name in files if name not in missing},
    )
    actual = reid.features(**rest, camera=cameras)
    letters = "".join(name[0] for name in missing)
    expected = export_pattern(3, "TEST.MISS", letters)["features"]
    assert_same(actual, expected[:SHOWN])
    mixed = {
        name: [
            None if name in missing and number % 2 else path for number, path in enumerate(paths)
        ]
        for name, paths in files.items()
    }
    whole = reid.features(**files, camera=cameras)
    expected = np.where(np.arange(SHOWN)[:, None] % 2, actual, whole)
    assert_same(reid.features(**mixed, camera=cameras), expected)


def test_an_export_of_own_images_has_their_features(reid, files, export_pattern, tmp_path):
    """A folder without labels, where images are absent; cameras are unknown."""
    images = {
        name: [None if (number + place) % 3 == 0 else path for number, path in enumerate(paths)]
        for place, (name, paths) in enumerate(files.items())
    }
    for name, paths in images.items():
        folder = tmp_path / "photos" / name.upper() / "sub"
        folder.mkdir(parents=True)
        for path in filter(None, paths):
            shutil.copy(path, folder)
    for words, folder, expected in (
        ((), "photos", images),
        (("--modality", "ti"), "photos/TI", {"ti": images["ti"]}),
    ):
        actual = export_pattern(3, "--images", tmp_path / folder, *words)
        triplets = [row for row in zip(*expected.values(), strict=True) if any(row)]
        assert len(triplets) >= 3 and set(actual["ids"]) == set(actual["cams"]) == {-1}
        by_name = dict(zip(expected, zip(*triplets, strict=True), strict=True))
        assert_same(actual["features"], reid.features(**by_name))
        if not words:
            names = [[path.name if path else "" for path in row] for row in triplets]
            assert [[Path(path).name for path in row] for row in actual["paths"]] == names


def test_every_kind_of_image_gives_the_same(reid, files):
    expected = reid.features(**files)
    images = {
        name: [Image.open(path).convert("RGB") for path in paths] for name, paths in files.items()
    }
    arrays = {
        name: np.stack([np.asarray(image) for image in actual]) for name, actual in images.items()
    }
    tensors = {
        name: torch.from_numpy(actual).permute(0, 3, 1, 2) for name, actual in arrays.items()
    }
    for variant in (
        images,
        arrays,
        tensors,
        {name: actual / 255 for name, actual in tensors.items()},
        {name: list(map(str, paths)) for name, paths in files.items()},
        {name: np.array(list(map(str, paths))) for name, paths in files.items()},
    ):
        assert np.array_equal(reid.features(**variant), expected)
    for variant in (files, images, arrays, tensors):
        single = {name: actual[1] for name, actual in variant.items()}
        assert_same(reid.features(**single), expected[1:2])
    with torch.autocast("cpu", dtype=torch.bfloat16):  # TEST.AMP alone is the precision
        assert np.array_equal(reid.features(**files), expected)
    grey = arrays["ti"][..., 0]
    as_colours = reid.features(ti=np.repeat(grey[..., None], 3, axis=3))
    assert np.array_equal(reid.features(ti=[*grey]), as_colours)
    assert np.array_equal(reid.features(ti=torch.from_numpy(grey)[:, None]), as_colours)


def test_an_unknown_camera_has_the_mean_embedding(reid, weights, files):
    other = demo_sdtps.load(weights, device=torch.device("cpu"))
    embedding = other.model.backbone.camera_embedding
    embedding.data[:] = embedding.data.double().mean(dim=0)
    expected = other.features(**files, camera=2)
    assert_same(reid.features(**files), expected)
    assert np.abs(reid.features(**files, camera=2).values - expected.values).max() > 1e-2


def test_distances_and_the_nearest_are_those_of_a_slow_search(reid):
    random = np.random.default_rng(shift_seed())
    gallery = random.normal(size=(20, 7)).astype(np.float32)
    gallery[[3, 11, 17]] = gallery[5]  # ties, which are in their order
    query = np.concatenate([random.normal(size=(3, 7)).astype(np.float32), gallery[5:6]])
    sides = [demo_sdtps.Features(side, [7] * len(side)) for side in (query, gallery)]
    for top in (1, 4, 10, 20):
        rows, distances = reid.search(*sides, top)
        expected = reference.nearest(query.tolist(), gallery.tolist(), range(20), top)
        assert rows.tolist() == [[row for _, row in line] for line in expected]
        assert distances.dtype == np.float32
        assert_close(distances, [[distance for distance, _ in line] for line in expected], 7, 4)
    whole = np.take_along_axis(reid.distance(*sides), rows, axis=1)
    assert np.array_equal(distances, whole)
    assert rows[3, :4].tolist() == [3, 5, 11, 17] and not distances[3, :4].any()
    kept = sides[1].prepared
    assert all(map(np.array_equal, reid.search(*sides, 30), (rows, distances)))
    assert sides[1].prepared is kept  # what a search derives from a gallery, which stays as it is
    with pytest.raises(ValueError, match="read-only"):
        sides[1].values[:] = 1
    narrow = demo_sdtps.Features(gallery[:, 1:], [7] * 20)
    for wrong in (narrow, gallery):
        with pytest.raises(UserError, match=r"of one width, not \(4, 7\) and \(20, "):
            reid.search(sides[0], wrong)
    for empty, top in ((sides[1][:0], 2), (sides[1], 0)):
        with pytest.raises(UserError, match="both must be at least 1"):
            reid.search(sides[0], empty, top)


def test_triplets_that_lack_images_are_compared_by_what_they_share(reid, files):
    """Of a list of all sets, with a note of what is present that its rows have too."""
    images = {
        name: [
            path if name[0] in letters else None
            for letters, path in zip(SETS, 2 * paths, strict=False)
        ]
        for name, paths in files.items()
    }
    features = reid.features(**images)
    assert features.present.tolist() == [
        sum(map({"r": 1, "n": 2, "t": 4}.get, each)) for each in SETS
    ]
    sources = [*OWN, *OWN, *SUBSETS.values()]
    parts = features.values.astype(float).reshape(len(SETS), len(sources), -1).tolist()
    sets = [{name for name in MODALITIES if name[0].lower() in each} for each in SETS]
    expected = plain.distances(parts, parts, sources, sets, sets, "shared")
    lengths = (*4 * features.shape[1:], 9)
    assert_close(reid.distance(features, features), expected, *lengths, scale=4)
    rows, _ = reid.search(features[2:4], features[[6, 0, 5]], top=2)
    allowed = 2 * tolerance(*lengths) * 4
    assert_order(rows, [[line[row] for row in (6, 0, 5)] for line in expected[2:4]], allowed)
    gallery = features[[0, 1]]
    rows, distances = reid.search(features[1:2], gallery)
    assert rows.tolist() == [[1, -1]] and np.isinf(distances).tolist() == [[False, True]]
    other = copy(reid)  # compares otherwise what the first search has kept of the gallery
    other.cfg = with_values(reid.cfg, {"TEST.CROSS_MODAL_DISTANCE": "all"})
    for one, number in ((other, 0), (reid, 1)):
        assert np.isinf(one.search(features[1:2], gallery).distances).sum() == number


BAD = {
    "Triplet 1 .*no image": lambda files: {"rgb": [files["rgb"][0], None]},
    f"{SHOWN} of rgb.*2 of ti.*as many": lambda files: files | {"ti": files["ti"][:2]},
    r"test_extractor\.py.*cannot be read": lambda files: {"rgb": Path(__file__)},
    r"\(3, 32, 16\).*transpose": lambda files: {"rgb": np.zeros((3, 32, 16))},
    r"\(32, 16, 3\).*permute": lambda files: {"rgb": torch.zeros(32, 16, 3)},
    "nan.*0 to 1": lambda files: {"rgb": np.full((32, 16, 3), np.nan)},
    "camera is 4.*0 to 3": lambda files: files | {"camera": 4},
}


@pytest.mark.parametrize("reason", BAD)
def test_what_cannot_be_used_is_told(reid, files, reason):
    with pytest.raises(UserError, match=reason):
        reid.features(**BAD[reason](files))


def test_images_that_the_model_does_not_read_are_ignored(tiny_root, files, tmp_path):
    words = cli_args_for(tiny_root, "MODEL.MODALITIES", "[RGB, TI]", config=BASELINE)
    weights = checkpoint_file(tmp_path / "last.pth", load_cfg(words[1], words[2:]))
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    assert np.array_equal(reid(**files), reid.features(rgb=files["rgb"], ti=files["ti"]))
    with pytest.raises(UserError, match="no image of rgb, ti"):
        reid(ni=files["ni"])


@pytest.mark.parametrize("name", ["run.json", "metrics.json", "last.calibration.json"])
@pytest.mark.parametrize("content", ["[1]", "{"])
def test_damaged_records_beside_a_checkpoint(weights, tmp_path, name, content):
    """Of a run and of a calibration: the sentence names the file."""
    path = Path(shutil.copy(weights, tmp_path / "last.pth"))
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        demo_sdtps.load(path, "MODEL.DEVICE", "cpu")
