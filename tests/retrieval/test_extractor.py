"""Features of own images: `demo_sdtps.load`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import KEEP_ALL, SHOWN, cameras_of, checkpoint_file, cli_args_for
from numeric import assert_close, seeded
from PIL import Image
from tiny import MODEL

import demo_sdtps
from demo_sdtps.commands import export_features
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.retrieval import extractor


@pytest.fixture(scope="module")
def reid(trained):
    return demo_sdtps.load(trained / "last.pth", "MODEL.DEVICE", "cpu")


@pytest.fixture(scope="module")
def trained(tiny_root, tmp_path_factory):
    """A folder with a checkpoint whose cameras differ much, with SDTPS, HDM and ATMoE."""
    folder = tmp_path_factory.mktemp("trained")
    words = cli_args_for(
        tiny_root, *KEEP_ALL, "MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", 4
    )
    checkpoint_file(folder / "last.pth", load_cfg(words[1], words[2:]))
    return folder


def assert_same(actual, expected):
    """Both by the model, in batches of different sizes."""
    assert_close(actual, expected, *MODEL, *MODEL)


def exported(command, weights, tmp_path, pattern, *opts):
    output = tmp_path / f"{pattern}.npz"
    code, _, stderr = command(
        export_features.main,
        "--weight",
        weights / "last.pth",
        "--return_pattern",
        pattern,
        "--normalise",
        "--output",
        output,
        *opts,
    )
    assert code == 0, stderr
    return np.load(output)["features"][:SHOWN]


@pytest.mark.parametrize("pattern", [1, 3])
def test_features_with_the_camera_are_those_of_export_features(
    reid, trained, files, command, tmp_path, pattern
):
    actual = reid.features(**files, return_pattern=pattern, camera=cameras_of(files))
    assert actual.dtype == np.float32 and actual.shape == (SHOWN, reid.widths[pattern])
    assert_same(actual, exported(command, trained, tmp_path, pattern))
    assert_close(
        np.linalg.norm(actual.astype(float), axis=1), np.ones(SHOWN), reid.widths[pattern], 1
    )


@pytest.mark.parametrize("missing", [("ni",), ("rgb", "ti")], ids=str)
def test_a_missing_modality_is_that_of_the_evaluation(
    reid, trained, files, command, tmp_path, missing
):
    """For all triplets by None in place of the images, and for some of them by None among the images."""
    cameras, given = (
        cameras_of(files),
        {name: paths for name, paths in files.items() if name not in missing},
    )
    actual = reid.features(**given, camera=cameras)
    letters = "".join(name[0] for name in missing)
    assert_same(actual, exported(command, trained, tmp_path, 3, "TEST.MISS", letters))
    mixed = {
        name: [
            None if name in missing and number % 2 else path for number, path in enumerate(paths)
        ]
        for name, paths in files.items()
    }
    whole = reid.features(**files, camera=cameras)
    expected = np.where(np.arange(SHOWN)[:, None] % 2, actual, whole)
    assert_same(reid.features(**mixed, camera=cameras), expected)


def test_an_export_of_own_images_has_their_features(reid, trained, files, command, tmp_path):
    """A folder without labels, where images are absent; cameras are unknown."""
    given = {
        name: [None if (number + place) % 3 == 0 else path for number, path in enumerate(paths)]
        for place, (name, paths) in enumerate(files.items())
    }
    for name, paths in given.items():
        for path in filter(None, paths):
            to = tmp_path / "photos" / name.upper() / "sub" / f"{path.stem}.jpg"
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    for words, folder, expected in (
        ((), "photos", given),
        (("--modality", "ti"), "photos/TI", {"ti": given["ti"]}),
    ):
        code, _, stderr = command(
            export_features.main,
            "--weight",
            trained / "last.pth",
            "--normalise",
            "--output",
            tmp_path / "x.npz",
            "--overwrite",
            "--images",
            tmp_path / folder,
            *words,
        )
        assert code == 0, stderr
        actual = np.load(tmp_path / "x.npz")
        shown = [
            number for number in range(SHOWN) if any(paths[number] for paths in expected.values())
        ]
        assert len(shown) >= 3 and set(actual["ids"]) == set(actual["cams"]) == {-1}
        assert_same(
            actual["features"],
            reid.features(
                **{name: [paths[number] for number in shown] for name, paths in expected.items()}
            ),
        )
        names = [
            [path and path.name for path in (paths[number] for paths in given.values())]
            for number in shown
        ]
        if not words:
            assert [
                [Path(path).name if path else None for path in row]
                for row in actual["paths"].tolist()
            ] == names


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
    for given in (
        images,
        arrays,
        tensors,
        {name: actual / 255 for name, actual in tensors.items()},
        {name: list(map(str, paths)) for name, paths in files.items()},
        {name: np.array(list(map(str, paths))) for name, paths in files.items()},
    ):
        assert np.array_equal(reid.features(**given), expected)
    for given in (files, images, arrays, tensors):
        single = {name: actual[1] for name, actual in given.items()}
        assert_same(reid.features(**single), expected[1:2])
    grey = arrays["ti"][..., 0]
    as_colours = reid.features(ti=np.repeat(grey[..., None], 3, axis=3))
    assert np.array_equal(reid.features(ti=[*grey]), as_colours)
    assert np.array_equal(reid.features(ti=torch.from_numpy(grey)[:, None]), as_colours)


def test_an_unknown_camera_has_the_mean_embedding(reid, trained, files):
    other = demo_sdtps.load(trained / "last.pth", "MODEL.DEVICE", "cpu")
    embedding = other.model.backbone.camera_embedding
    embedding.data[:] = embedding.data.double().mean(dim=0)
    expected = other.features(**files, camera=2)
    assert_same(reid.features(**files), expected)
    assert np.abs(reid.features(**files, camera=2) - expected).max() > 1e-2


def test_many_triplets_are_loaded_by_processes(trained, files, monkeypatch, no_process_left):
    monkeypatch.setattr(extractor, "FEW", 2)
    reid = demo_sdtps.load(
        trained / "last.pth",
        "MODEL.DEVICE",
        "cpu",
        "DATALOADER.NUM_WORKERS",
        1,
        "TEST.IMS_PER_BATCH",
        2,
    )
    actual = reid.features(**files)
    monkeypatch.undo()
    assert_same(actual, reid.features(**files))


def test_distances_and_the_nearest_are_those_of_a_slow_search(reid):
    random = np.random.default_rng(seeded())
    gallery = random.normal(size=(20, 7)).astype(np.float32)
    gallery[[3, 11, 17]] = gallery[5]  # ties, which are in their order
    query = np.concatenate([random.normal(size=(3, 7)).astype(np.float32), gallery[5:6]])
    expected = np.array(
        [
            [
                sum((float(x) - float(y)) ** 2 for x, y in zip(one, other, strict=True))
                for other in gallery
            ]
            for one in query
        ]
    )
    assert_close(reid.distance(query, gallery), expected, 7, 4)
    order = [sorted(range(20), key=lambda row: (line[row], row)) for line in expected]
    for top in (1, 4, 10, 30):
        rows, distances = reid.search(query, gallery, top)
        assert rows.tolist() == [line[:top] for line in order] and distances.dtype == np.float32
        assert np.array_equal(
            distances, np.take_along_axis(reid.distance(query, gallery), rows, axis=1)
        )
    assert rows[3, :4].tolist() == [3, 5, 11, 17] and not distances[3, :4].any()
    with pytest.raises(UserError, match=r"shapes \(4, 7\) and \(20, 6\)"):
        reid.search(query, gallery[:, 1:])


BAD = {
    "a triplet without image": (
        lambda files: {"rgb": [files["rgb"][0], None]},
        ["Triplet 1 ", "no image"],
    ),
    "other numbers": (
        lambda files: files | {"ti": files["ti"][:2]},
        [f"{SHOWN} of rgb", "2 of ti", "as many"],
    ),
    "a text file": (lambda files: {"rgb": Path(__file__)}, [Path(__file__).name, "cannot be read"]),
    "channels first": (
        lambda files: {"rgb": np.zeros((3, 32, 16))},
        ["(3, 32, 16)", "transpose(1, 2, 0)"],
    ),
    "channels last": (
        lambda files: {"rgb": torch.zeros(32, 16, 3)},
        ["(32, 16, 3)", "permute(2, 0, 1)"],
    ),
    "not a number": (lambda files: {"rgb": np.full((32, 16, 3), np.nan)}, ["nan", "0 to 1"]),
    "unknown camera": (lambda files: files | {"camera": 4}, ["camera is 4", "0 to 3"]),
}


@pytest.mark.parametrize("given, said", BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_told(reid, files, given, said):
    with pytest.raises(UserError) as error:
        reid.features(**given(files))
    assert all(part in str(error.value) for part in said), error.value
