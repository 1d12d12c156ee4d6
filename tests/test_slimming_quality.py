"""Where the patches that slimming keeps lie: tools/selection_quality.py against a slow version, and the study's table."""
import json
from pathlib import Path

import pytest
import torch
from commands import BASELINE, cli_args_for, weights_file
from reference import selection as reference
from test_selection_quality import CASES, PATCH, few, images_of, mask_of, mean, near  # noqa: F401

from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.slimming import remaining_patches
from demo_sdtps.reports import tokens
from demo_sdtps.tools import selection_quality

SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.5,0.5]")
LIGHTS = {"0": "day", "1": "night"}


def words_for(root, folder, *opts):
    words = cli_args_for(root, *SLIM, *opts, config=BASELINE)
    return [*words, "--weight", str(weights_file(folder / "weights.pth", load_cfg(BASELINE, words[2:])))]


def measured(command, folder, words, *more):
    code, stdout, stderr = command(selection_quality.main, *words, "--overwrite", "--json", folder / "s.json", *more)
    assert code == 0 and not stderr
    return json.loads((folder / "s.json").read_text()), stdout


def model_and_samples(words):
    cfg = load_cfg(BASELINE, [*words[2:-2], "TEST.WEIGHT", words[-1]])
    model, splits = load_model_and_data(cfg, ("query",))
    return cfg, model, splits["query"]


def slow_row(places, scores, kept, relevant):
    """One image: the patches' places on the grid, their scores, the set of the kept places, relevant [N booleans]."""
    here, hits = [relevant[place] for place in places], sum(relevant[place] for place in kept)
    return {"base_rate": sum(here) / len(here), "kept": hits / len(kept), "recall": hits / sum(relevant),
            "score": reference.average_precision(scores, here)}


@torch.no_grad()
def slow_measures(cfg, model, samples, case):
    """A row for each sample, by stage and modality: every triplet alone."""
    missing, found = missing_modalities(case), {}
    for sample in samples:
        relevant = reference.foreground(mask_of(sample), cfg.INPUT.SIZE_TEST, (PATCH, PATCH), cfg.MODEL.STRIDE_SIZE)
        images, cameras = images_of(cfg, sample)
        context = model.encode({m: image * (m not in missing) for m, image in images.items()}, cameras, missing)
        for number, stage in enumerate(context.stages):
            for modality in MODALITIES:
                if modality not in missing:
                    found.setdefault((number, modality), []).append(slow_row(*(
                        part[modality][0].tolist() for part in (stage.scored, stage.score, stage.kept)), relevant))
    return found


def means(rows):
    return {name: mean([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("shared", [True, False])
def test_stages_are_measured_as_the_slow_version_does(few, tmp_path, command, shared):  # noqa: F811
    words = words_for(few, tmp_path, "MODEL.SLIM_SHARED", shared, "TEST.IMS_PER_BATCH", "3")
    found, _ = measured(command, tmp_path, words)
    cfg, model, samples = model_and_samples(words)
    counts = remaining_patches(model.backbone.num_patches, cfg.MODEL.SLIM_KEEP)
    lights = [LIGHTS[Path(sample.paths[0]).name.split("_")[2]] for sample in samples]
    assert found["cases"] == {} and list(found["stages"]) == ["stage 1", "stage 2"]
    assert set(found["lights"]) == set(lights) == {"day", "night"}
    for case in CASES:
        slow = slow_measures(cfg, model, samples, case)
        by_stage = [stage[case] for stage in found["stages"].values()]
        assert list(slow) == [(number, modality) for number, rows in enumerate(by_stage) for modality in rows]
        for (number, modality), rows in slow.items():
            assert by_stage[number][modality] == near(means(rows), len(samples), counts[number]), (number, case, modality)
            for light in LIGHTS.values() if case == "nothing" else ():
                those = [row for row, one in zip(rows, lights, strict=True) if one == light]
                by_light = found["lights"][light][f"stage {number + 1}"][modality]
                assert by_light == near(means(those), len(those), counts[number])


def test_the_true_mask_is_a_perfect_detector(few, tmp_path, command):  # noqa: F811
    """The person has fewer patches than the half that is kept, and more than the quarter."""
    found, _ = measured(command, tmp_path, words_for(few, tmp_path, "MODEL.SLIM_SCORE", "mask", "INPUT.JOINT_AUGMENTATION",
                                                    "True"))
    first, second = found["stages"].values()
    for case in CASES:
        for row, later in zip(first[case].values(), second[case].values(), strict=True):
            assert row["score"] == later["score"] == row["recall"] == 1
            assert later["base_rate"] == pytest.approx(row["kept"]) and row["kept"] == pytest.approx(2 * row["base_rate"])
            assert later["recall"] <= 1 and later["kept"] <= 1


def test_sdtps_behind_slimming_is_measured_among_what_is_left(few, tmp_path, command):  # noqa: F811
    words = words_for(few, tmp_path, "MODEL.USE_SDTPS", "True", "MODEL.SDTPS_SPARSE_RATIO", "1.0")
    found, stdout = measured(command, tmp_path, words)
    assert [line for line in stdout.splitlines() if line.endswith(":")] == ["stage 1:", "stage 2:", "SDTPS:"]
    for case, by_modality in found["cases"].items():
        for modality, row in by_modality.items():
            last = found["stages"]["stage 2"][case][modality]
            assert row["base_rate"] == pytest.approx(last["kept"]) == row["kept"]
            assert row["recall"] == pytest.approx(last["recall"])
            assert {"score", "MLP"} <= row.keys()


@pytest.mark.parametrize("score", ["distinctness", "mask"])
def test_masks_of_every_stage_and_of_sdtps(few, tmp_path, score):  # noqa: F811
    """32 patches, of which the stages keep 16 and 8, and SDTPS 4 of these."""
    words = words_for(few, tmp_path, "MODEL.USE_SDTPS", "True", "MODEL.SDTPS_SPARSE_RATIO", "0.5", "MODEL.SLIM_SCORE", score,
                      "INPUT.JOINT_AUGMENTATION", "True")
    cfg, model, samples = model_and_samples(words)
    masks = tokens.kept_patches(cfg, model, samples)
    assert {title: {int(one.sum()) for mask in masks[title].values() for one in mask} for title in masks} == {
        "stage 1": {16}, "stage 2": {8}, "SDTPS": {4}}
    for modality in MODALITIES:
        first, second, last = (mask[modality] for mask in masks.values())
        assert first.shape == (len(samples), *model.backbone.grid_size)
        assert (second <= first).all() and (last <= second).all()
        assert torch.equal(first, masks["stage 1"]["RGB"])  # sets are shared
