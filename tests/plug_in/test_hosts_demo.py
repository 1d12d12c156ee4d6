"""The plug-in on a checkout of DeMo, HOSTS/DeMo (test_hosts.py): features of this project's model, DeMo's own loop, --fast."""

import json
import os
import re
import shlex
import subprocess
import sys
from functools import partial

import pytest
from hosts import FOLDER, importing_from
from tiny import ROOT

HELPERS, CHECKOUT = ROOT / "tests" / "helpers", os.path.join(os.path.abspath(FOLDER), "DeMo")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="HOSTS names no folder of checkouts of other code bases"),
    pytest.mark.skipif(not os.path.isdir(CHECKOUT), reason="there is no HOSTS/DeMo"),
]
SMALL = shlex.split(
    "INPUT.SIZE_TRAIN '[64, 32]' INPUT.SIZE_TEST '[64, 32]' DATALOADER.NUM_WORKERS 0"
)
RUN = shlex.split(
    "SOLVER.MAX_EPOCHS 1 SOLVER.LOG_PERIOD 1 SOLVER.IMS_PER_BATCH 8 "
    "DATALOADER.NUM_INSTANCE 4 TEST.IMS_PER_BATCH 16 MODEL.USE_SDTPS True"
)
OFF = ["MODEL.HDM", "False", "MODEL.ATM", "False"]
RANKING = """
import json, sys
import numpy as np, torch
from utils import metrics
from demo_sdtps.plug_in.fast import replace_ranking
from demo_sdtps.plug_in.launch import Checkout
from pathlib import Path
theirs = {name: getattr(metrics, name) for name in ("eval_func", "re_ranking")}
torch.manual_seed(0)
centres = torch.randn(30, 64)
ids = torch.arange(300) % 30
features = torch.nn.functional.normalize(centres[ids] + torch.randn(300, 64))
cams = torch.randint(0, 4, (300,)).numpy()
sides = lambda x: (x[:100], x[100:])
query, gallery = sides(features)
distance = torch.cdist(query, gallery).square().numpy()
labels = (*sides(ids.numpy()), *sides(cams))
replace_ranking(Checkout(Path(sys.argv[1]).resolve()))
before, after = (ranking(distance, *labels) for ranking in (theirs["eval_func"], metrics.eval_func))
class Whole:
    float16 = np.float32
    __getattr__ = staticmethod(lambda name: getattr(np, name))
def rerank_error(k1, k2):
    ranked, ours = (f(query, gallery, k1, k2, 0.3) for f in (theirs["re_ranking"], metrics.re_ranking))
    return float(np.abs(ranked.astype(float) - ours).max())
errors = [rerank_error(20, 6), rerank_error(50, 15)]
theirs["re_ranking"].__globals__["np"] = Whole()
errors.append(rerank_error(50, 15))
scenes = sides(np.arange(300) % 7)
msvr = metrics.eval_func_msrv(distance, *labels, *scenes)[1]
print(json.dumps({"cmc": float(np.abs(before[0] - after[0]).max()), "mAP": abs(before[1] - after[1]),
                  "re-ranking": errors,
                  "scenes": abs(msvr - theirs["eval_func"](distance, *labels[:2], *scenes)[1])}))
"""


@pytest.fixture
def python(tmp_path):
    """Run a program in the checkout → what it prints."""
    environment = importing_from(CHECKOUT, tmp_path)

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, words)],
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_features_are_those_of_our_model(python, tmp_path):
    """A state dict of the patched model, loaded here and by load_param: patterns 1, 2, 3 of batches of 2 and 3; --fast."""
    python(HELPERS / "host_demo.py", CHECKOUT, tmp_path)
    text = (tmp_path / "figures.json").read_text()
    print(text)
    for setting, actual in json.loads(text).items():
        assert (
            actual["ours"] < 1e-6
            and actual["copy"] == 0
            and actual["fast"] < 1e-5
            and actual["finite"]
        ), setting
        if not setting.startswith("slimmed"):
            assert actual["pair"] == [[3, 171], [3, 1536 if "CLIP" in setting else 2304]]


@pytest.mark.parametrize("modules", [[], OFF])
def test_demos_own_loop_and_evaluation(python, tiny_root, tmp_path, modules):
    """Six steps, the three patterns, a checkpoint, and test_net.py with it, with and without --fast."""
    folders = f"--config_file {CHECKOUT}/configs/RGBNT201/DeMo.yml DATASETS.ROOT_DIR {tiny_root}"
    words = [*folders.split(), "OUTPUT_DIR", tmp_path / "run", *SMALL, *RUN, *modules]
    run = partial(python, HELPERS / "host_models.py")
    trained = run("train_net.py", *words)
    losses = [float(loss) for loss in re.findall(r"Iteration\[\d+/\d+\] Loss: ([\d.]+)", trained)]
    assert len(losses) >= 5 and all(loss < 100 for loss in losses)
    assert all(
        trained.count(f"Current is the {name} feature testing!") == 1
        for name in ("ori", "moe", "[moe,ori]")
    )
    best = tmp_path / "run" / "DeMobest.pth"
    tested = [run(*fast, "--weight", best, "test_net.py", *words) for fast in ([], ["--fast"])]
    results = [re.findall(r"(mAP|Rank-\d+) *: *([\d.]+)%", output) for output in (trained, *tested)]
    assert results[0][-4 - 4 : -4] == results[1] == results[2] and len(results[1]) == 4
    print(losses, results[1])


def test_ranking_and_reranking_by_ours_are_theirs(python):
    """Re-ranked distances differ by the rounding of theirs, which are float16."""
    actual = json.loads(python("-c", RANKING, CHECKOUT).splitlines()[-1])
    print(actual)
    small, large, without_half_precision = actual["re-ranking"]
    assert small < 5e-3 and large < 1e-2 and without_half_precision < 1e-5
    assert max(actual["cmc"], actual["mAP"], actual["scenes"]) < 1e-6
