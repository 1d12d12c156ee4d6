"""The picture of the patches that slimming keeps, by tools/draw_tokens.py and tools/report.py."""
import pytest
import torch
from commands import BASELINE, cli_args_for
from test_slimming_quality import SLIM, few, model_and_samples, words_for  # noqa: F401

from demo_sdtps import train_net
from demo_sdtps.config import MODALITIES
from demo_sdtps.tools import draw_tokens, report


@pytest.mark.parametrize("score", ["distinctness", "mask"])
def test_masks_of_every_stage_and_of_sdtps(few, tmp_path, score):  # noqa: F811
    """32 patches, of which the stages keep 16 and 8, and SDTPS 4 of these."""
    words = words_for(few, tmp_path, "MODEL.USE_SDTPS", "True", "MODEL.SDTPS_SPARSE_RATIO", "0.5", "MODEL.SLIM_SCORE", score,
                      "INPUT.JOINT_AUGMENTATION", "True")
    cfg, model, samples = model_and_samples(words)
    masks = draw_tokens.kept_patches(cfg, model, samples)
    assert {title: {int(one.sum()) for mask in masks[title].values() for one in mask} for title in masks} == {
        "stage 1": {16}, "stage 2": {8}, "SDTPS": {4}}
    for modality in MODALITIES:
        first, second, last = (mask[modality] for mask in masks.values())
        assert first.shape == (len(samples), *model.backbone.grid_size)
        assert (second <= first).all() and (last <= second).all()
        assert torch.equal(first, masks["stage 1"]["RGB"])  # sets are shared


@pytest.mark.slow
def test_the_report_draws_them(few, tmp_path, command):  # noqa: F811
    words = cli_args_for(few, *SLIM, "OUTPUT_DIR", tmp_path / "run", "SOLVER.MAX_EPOCHS", "1", config=BASELINE)
    assert command(train_net.main, *words, "SOLVER.IMS_PER_BATCH", "4")[0] == 0
    code, stdout, _ = command(report.main, "--run", tmp_path / "run")
    assert code == 0 and "kept tokens" in stdout and (tmp_path / "run" / "tokens.png").exists()
