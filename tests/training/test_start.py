"""What a training starts from, by which identities best.pth is chosen, and what the call in Python returns."""

import re
from pathlib import Path

import pytest
import torch
from commands import CONFIG, checkpoint_file, cli_args_for, load_records
from interrupted import prepared

import demo_sdtps
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.protocol import evaluate_reid, make_test_data
from demo_sdtps.evaluation.tables import reid_record

pytestmark = pytest.mark.usefixtures("shallow")

ANEW = ["heads.original.classifier.weight", "heads.sdtps.classifier.weight"]
HALVES = {"DATASETS.VALIDATION": 0.5, "SOLVER.IMS_PER_BATCH": 4}


@pytest.fixture(scope="module")
def cfg(tiny_root, tmp_path_factory):
    output = ("OUTPUT_DIR", tmp_path_factory.mktemp("start") / "run")
    return load_cfg(CONFIG, cli_args_for(tiny_root, *output)[2:])


@pytest.mark.parametrize("cameras", [4, 9])
def test_all_but_classifiers_is_loaded(cfg, tmp_path, cameras):
    """Of other identities; embeddings of cameras where there are as many."""
    path = checkpoint_file(tmp_path / "best.pth", cfg, classes=11, cameras=cameras)
    start = torch.load(path, weights_only=True)["model"]
    fresh = prepared(cfg).model.state_dict()
    task = prepared(with_values(cfg, {"TEST.WEIGHT": str(path)}))
    anew = [*ANEW] if cameras == 4 else ["backbone.camera_embedding", *ANEW]
    for name, tensor in task.model.state_dict().items():
        assert torch.equal(tensor, (fresh if name in anew else start)[name]), name
    (note,) = (text for text in task.notes if str(path) in text)
    assert note == f"the weights are those of {path}, but of new ones: {', '.join(anew)}"


def test_a_start_with_other_parts_is_told_and_another_backbone_refused(cfg, tmp_path):
    path = checkpoint_file(tmp_path / "best.pth", with_values(cfg, {"MODEL.HDM": True}))
    start = with_values(cfg, {"TEST.WEIGHT": str(path), "MODEL.GLOBAL_LOCAL": False})
    task = prepared(start)
    assert any(re.search("not used of it: .*hdm.*pife", text) for text in task.notes)
    other = with_values(start, {"MODEL.PATCH_SIZE": 8, "MODEL.STRIDE_SIZE": [8, 8]})
    with pytest.raises(UserError, match=r"pos_embed has the shape \(1, 33, 64\), not \(1, 9, 64\)"):
        prepared(other)


def test_what_cannot_be_started_from(cfg, refusal, tiny_root, tmp_path):
    path = checkpoint_file(tmp_path / "best.pth", with_values(cfg, {"OUTPUT_DIR": str(tmp_path)}))
    assert "give another OUTPUT_DIR" in refusal(train_net.main, "--weight", path, "--overwrite")
    words = cli_args_for(tiny_root, "OUTPUT_DIR", "run", "MODEL.PRETRAIN_PATH_T", path)
    assert f"{path} holds weights of another model" in refusal(train_net.main, *words)


@pytest.mark.slow
def test_the_call_in_python_and_the_choice_of_the_best_epoch(cfg, tmp_path, caplog):
    """The identities of the validation split are both query and gallery."""
    path = checkpoint_file(tmp_path / "best.pth", cfg)
    run = with_values(cfg, {**HALVES, "TEST.WEIGHT": str(path)})
    trained = demo_sdtps.train(run)
    output = Path(run.OUTPUT_DIR)
    assert trained.metrics == load_records(output) and not trained.model.training
    assert "best.pth is chosen by the split validation" in caplog.text
    with pytest.raises(UserError, match="already holds a run"):
        demo_sdtps.train(run)
    again = demo_sdtps.train(with_values(run, {"RESUME": "auto"}))
    last = torch.load(output / "last.pth", weights_only=True)
    for model in (trained.model, again.model):
        state = model.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in last["model"].items())
    assert again.metrics == trained.metrics
    held_out = read_splits(run, ("validation",))["validation"]
    data = make_test_data(run, held_out, held_out)
    (rankings,) = evaluate_reid(run, trained.model, data).values()
    assert trained.metrics[-1]["validation"] == reid_record(rankings)
    evaluation = prepared(with_values(run, {"OUTPUT_DIR": str(tmp_path / "none")})).evaluate(0)
    record = {name: patterns["3"]["mAP"] for name, patterns in evaluation.record.items()}
    assert evaluation.score == record["validation"] != record["patterns"]
