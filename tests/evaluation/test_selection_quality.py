"""Where the patches that SDTPS and slimming keep lie: demo-sdtps selection against a slow version of it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from commands import BASELINE, CONFIG, cli_args_for, weights_file
from torch.utils.data import DataLoader

from demo_sdtps.commands import evaluate
from demo_sdtps.config import MISSING_CASES, MODALITIES, load_cfg
from demo_sdtps.datasets.loaders import ImageDataset, batches, collate
from demo_sdtps.datasets.transforms import PerModality, test_transform
from demo_sdtps.evaluation.extraction import load_model_and_data
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.sdtps import STATE_NAMES
from demo_sdtps.reports import tokens
from tests.reference import sdtps
from tests.reference import selection as reference
from tests.reference.analysis import mean
from vit_slim.stage import remaining_patches

pytestmark = pytest.mark.usefixtures("shallow")
CASES = ("nothing", *MISSING_CASES)
PATCH = 4
IDENTITIES = ("000001", "000002", "000007", "000008")
RELEVANT = 8
"""Patches on the person in an image, at least."""


@pytest.fixture(scope="module")
def few(tiny_root, tmp_path_factory):
    """Two identities to train on and two to test, one triplet of each from every camera."""

    def others(_, names):
        return [
            name
            for name in names
            if name.endswith((".jpg", ".png")) and not (name[:6] in IDENTITIES and "_00." in name)
        ]

    return shutil.copytree(tiny_root, tmp_path_factory.mktemp("few") / "data", ignore=others)


@pytest.fixture(scope="module")
def weights(few, tmp_path_factory):
    return save_weights(cli_args_for(few), tmp_path_factory.mktemp("weights") / "weights.pth")


@pytest.fixture
def words(few, weights, tmp_path):
    return [*cli_args_for(few), "--weight", shutil.copy(weights, tmp_path / "weights.pth")]


def save_weights(words, path):
    """Weights for the configuration of the command's words, whose MLPs tell patches apart more than fresh ones do."""
    weights_file(path, load_cfg(CONFIG, words[2:]))
    content = torch.load(path, weights_only=True)
    for name, value in content["model"].items():
        if ".score_predictor." in name:
            value.mul_(2)
    torch.save(content, path)
    return path


def measure(command, words, *more):
    """What the command writes to its --json file, and prints."""
    output = Path(words[-1]).with_name("measured.json")
    code, stdout, stderr = command(
        evaluate.selection, *words, "--overwrite", "--json", output, *more
    )
    assert code == 0 and not stderr, stderr
    return json.loads(output.read_text()), stdout


def model_and_samples(words):
    """The command's model and samples."""
    cfg = load_cfg(words[1], [*map(str, words[2:-2]), "TEST.WEIGHT", str(words[-1])])
    model, splits = load_model_and_data(cfg, ("query",))
    return cfg, model, splits["query"]


def mask_path(sample):
    return Path(sample.paths[0].replace("/RGB/", "/MASK/")).with_suffix(".png")


def load_images(cfg, *samples):
    dataset = ImageDataset(
        [sample.paths for sample in samples],
        [(0, sample.camera) for sample in samples],
        PerModality(test_transform(cfg)),
        cache=False,
    )
    (batch,) = batches(DataLoader(dataset, len(samples), collate_fn=collate))
    return batch.images, batch.cameras


@torch.no_grad()
def slow_measures(cfg, model, samples):
    """{case: {modality: {what: share}}}: zeros pass the backbone for what is missing; scored image by image."""
    relevant = [
        reference.foreground(
            mask_path(sample), cfg.INPUT.SIZE_TEST, (PATCH, PATCH), cfg.MODEL.STRIDE_SIZE
        )
        for sample in samples
    ]
    images, cameras = load_images(cfg, *samples)
    actual = {}
    for case in CASES:
        missing = missing_modalities(case)
        context = model.forward_features(
            {m: image * (m not in missing) for m, image in images.items()}, cameras
        ).context
        actual[case] = {
            modality: slow_row(cfg, model, context, modality, missing, relevant)
            for modality in MODALITIES
            if modality not in missing
        }
    return actual


def slow_row(cfg, model, context, modality, missing, relevant):
    """One modality in one case; relevant [[N booleans]]."""
    module = getattr(model.sdtps, f"{STATE_NAMES[modality]}_sparse")
    weights = {f"sparse.{name}": value.double() for name, value in module.state_dict().items()}
    still = () if cfg.MODEL.SDTPS_GUIDE_MISSING else [*map(MODALITIES.index, missing)]
    row = {}
    for place, here in enumerate(relevant):
        patches = context.tokens[modality][place].double()
        guides = {m: context.global_feats[m][place].double() for m in MODALITIES}
        index, beta = MODALITIES.index(modality), cfg.MODEL.SDTPS_BETA
        parts = {
            "score": sdtps.score_patches(weights, patches, index, [*guides.values()], beta, still),
            "MLP": [sdtps.predict(weights, patch) for patch in patches],
        }
        for other, guide in guides.items():
            parts[other] = sdtps.min_max([sdtps.cosine(patch, guide) for patch in patches])
        kept, _ = sdtps.choose(parts["score"], cfg.MODEL.SDTPS_SPARSE_RATIO)
        shares = {
            "base_rate": sum(here) / len(here),
            "kept": sum(here[patch] for patch in kept) / len(kept),
        }
        shares["recall"] = sum(here[patch] for patch in kept) / sum(here) if any(here) else None
        precisions = {
            name: reference.average_precision([float(score) for score in scores], here)
            for name, scores in parts.items()
            if name not in missing
        }
        for name, value in (shares | precisions).items():
            row.setdefault(name, []).append(value)
    return {name: mean(values) for name, values in row.items()}


def near(row, images, keep):
    """What a row of measures may be where it is computed with another rounding, as in batches of another size: in an image
    two patches whose scores differ by rounding alone may change places. That is worth one of the kept patches, one of those on
    the person, and at most 1/(2 · RELEVANT) of its AP."""
    worth = {"base_rate": 1e-9, "kept": 1.001 / keep, "recall": 1.001 / RELEVANT}
    return {
        name: pytest.approx(value, abs=worth.get(name, 0.501 / RELEVANT) / images)
        for name, value in row.items()
    }


SIZE = "INPUT.SIZE_TRAIN [40,20] INPUT.SIZE_TEST [40,20]"
OPTS = {
    "odd batches": "TEST.IMS_PER_BATCH 3",
    "overlapping patches, not guided by what is missing": "MODEL.STRIDE_SIZE [3,2] MODEL.SDTPS_GUIDE_MISSING False",
    "other size and share": f"{SIZE} MODEL.SDTPS_SPARSE_RATIO 0.3 MODEL.SDTPS_BETA 0.4",
}


@pytest.mark.parametrize(
    "opts",
    [
        pytest.param(opts, marks=[pytest.mark.slow] * (name != "odd batches"), id=name)
        for name, opts in OPTS.items()
    ],
)
def test_the_command_measures_what_the_slow_version_does(few, tmp_path, command, opts):
    words = cli_args_for(few, *opts.split())
    words += ["--weight", save_weights(words, tmp_path / "weights.pth")]
    actual, _ = measure(command, words)
    cfg, model, samples = model_and_samples(words)
    expected = slow_measures(cfg, model, samples)
    about = [actual[name] for name in ("images", "left_out", "split", "weight")]
    assert about == [8, 0, "query", str(words[-1])]
    assert list(actual["cases"]) == list(expected) == list(CASES)
    with torch.no_grad():
        whole = model.forward_features(*load_images(cfg, *samples)).context.global_feats
    for modality, vectors in whole.items():
        cosines = F.cosine_similarity(vectors[:, None].double(), vectors.double(), dim=-1)
        others = mean(cosines[~torch.eye(8, dtype=torch.bool)].tolist())
        assert actual["mean_global_cosine"][modality] == pytest.approx(others, abs=1e-5)
    for case, by_modality in expected.items():
        assert (
            list(actual["cases"][case])
            == list(by_modality)
            == [m for m in MODALITIES if m not in missing_modalities(case)]
        )
        for modality, row in by_modality.items():
            assert row.keys() == {"base_rate", "kept", "recall", "score", "MLP", *by_modality}
            assert actual["cases"][case][modality] == near(row, len(samples), model.sdtps.keep), (
                case,
                modality,
            )


# Slimming

SLIM = ("MODEL.SLIM_BLOCKS", "[0,1]", "MODEL.SLIM_KEEP", "[0.5,0.5]")
LIGHTS = {"0": "day", "1": "night"}


def slim_words(root, folder, *opts):
    words = cli_args_for(root, *SLIM, *opts, config=BASELINE)
    path = weights_file(folder / "weights.pth", load_cfg(BASELINE, words[2:]))
    return [*words, "--weight", str(path)]


def slow_stage(places, scores, kept, relevant):
    """One image: the patches' places on the grid, their scores, the set of the kept places, relevant [N booleans]."""
    here, hits = [relevant[place] for place in places], sum(relevant[place] for place in kept)
    return {
        "base_rate": sum(here) / len(here),
        "kept": hits / len(kept),
        "recall": hits / sum(relevant),
        "score": reference.average_precision(scores, here),
    }


@torch.no_grad()
def slow_stages(cfg, model, samples, case):
    """A row for each sample, by stage and modality: every triplet alone."""
    missing, actual = missing_modalities(case), {}
    for sample in samples:
        relevant = reference.foreground(
            mask_path(sample), cfg.INPUT.SIZE_TEST, (PATCH, PATCH), cfg.MODEL.STRIDE_SIZE
        )
        images, cameras = load_images(cfg, sample)
        encoded = model.forward_features(
            {m: image * (m not in missing) for m, image in images.items()}, cameras
        )
        for number, stage in enumerate(encoded.stages):
            for modality in MODALITIES:
                if modality not in missing:
                    each = (stage.scored, stage.score, stage.kept)
                    row = slow_stage(*(values[modality][0].tolist() for values in each), relevant)
                    actual.setdefault((number, modality), []).append(row)
    return actual


def means(rows):
    return {name: mean([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_stages_are_measured_as_the_slow_version_does(few, tmp_path, command, shared):
    words = slim_words(few, tmp_path, "MODEL.SLIM_SHARED", shared, "TEST.IMS_PER_BATCH", "3")
    actual, _ = measure(command, words)
    cfg, model, samples = model_and_samples(words)
    counts = remaining_patches(model.backbone.num_patches, cfg.MODEL.SLIM_KEEP)
    lights = [LIGHTS[Path(sample.paths[0]).name.split("_")[2]] for sample in samples]
    assert actual["cases"] == {} and list(actual["stages"]) == ["stage 1", "stage 2"]
    assert set(actual["lights"]) == set(lights) == {"day", "night"}
    for case in CASES:
        slow = slow_stages(cfg, model, samples, case)
        by_stage = [stage[case] for stage in actual["stages"].values()]
        assert list(slow) == [
            (number, modality) for number, rows in enumerate(by_stage) for modality in rows
        ]
        for (number, modality), rows in slow.items():
            expected = near(means(rows), len(samples), counts[number])
            assert by_stage[number][modality] == expected, (number, case, modality)
            for light in LIGHTS.values() if case == "nothing" else ():
                light_rows = [
                    row for row, row_light in zip(rows, lights, strict=True) if row_light == light
                ]
                by_light = actual["lights"][light][f"stage {number + 1}"][modality]
                assert by_light == near(means(light_rows), len(light_rows), counts[number])


def test_sdtps_after_slimming_is_measured_among_what_is_left(few, tmp_path, command):
    words = slim_words(few, tmp_path, "MODEL.USE_SDTPS", "True", "MODEL.SDTPS_SPARSE_RATIO", "1.0")
    actual, stdout = measure(command, words)
    assert [line for line in stdout.splitlines() if line.endswith(":")] == [
        "stage 1:",
        "stage 2:",
        "SDTPS:",
    ]
    for case, by_modality in actual["cases"].items():
        for modality, row in by_modality.items():
            last = actual["stages"]["stage 2"][case][modality]
            assert row["base_rate"] == pytest.approx(last["kept"]) == row["kept"]
            assert row["recall"] == pytest.approx(last["recall"])
            assert {"score", "MLP"} <= row.keys()


@pytest.mark.parametrize("score", ["distinctness", "saliency"])
def test_masks_of_every_stage_and_of_sdtps(few, tmp_path, score):
    """32 patches, of which the stages keep 16 and 8, and SDTPS 4 of these."""
    opts = f"MODEL.USE_SDTPS True MODEL.SDTPS_SPARSE_RATIO 0.5 MODEL.SLIM_SCORE {score}"
    words = slim_words(few, tmp_path, *opts.split(), "INPUT.JOINT_AUGMENTATION", "True")
    cfg, model, samples = model_and_samples(words)
    grids = tokens.patch_grids(cfg, model, samples)
    masks = {
        title: {modality: both[:, 0] for modality, both in by_modality.items()}
        for title, by_modality in grids.items()
    }
    assert {
        title: {int(values.sum()) for mask in masks[title].values() for values in mask}
        for title in masks
    } == {"stage 1": {16}, "stage 2": {8}, "SDTPS": {4}}
    for modality in MODALITIES:
        first, second, last = (mask[modality] for mask in masks.values())
        assert first.shape == (len(samples), *model.backbone.grid_size)
        assert (second <= first).all() and (last <= second).all()
        assert torch.equal(first, masks["stage 1"]["RGB"])  # sets are shared
