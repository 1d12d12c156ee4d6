"""`python -m demo_sdtps SCRIPT …` in a miniature of DeMo's checkout (reference/demo_host)."""

import re
import shutil
import subprocess
import sys

import pytest
import torch
from forked import run_script
from plug_in_host import HOST

pytestmark = pytest.mark.slow
SIZE = ["INPUT.SIZE_TRAIN", "[64, 32]"]
ON = ["MODEL.USE_SDTPS", "True"]
FUSED = ["MODEL.HDM", "True", "MODEL.ATM", "True"]
WIDTH = 64
RESULT = re.compile(r"pattern (\d) width (\d+) mAP ([\d.]+) Rank-1 ([\d.]+)")


def launch(checkout, *words, **environment):
    """`python -m demo_sdtps WORDS` run in a checkout."""
    return run_script("demo_sdtps", *words, cwd=checkout, **environment)


@pytest.fixture
def checkout(tmp_path):
    return shutil.copytree(
        HOST, tmp_path / "checkout", ignore=shutil.ignore_patterns("__pycache__")
    )


def parse_results(done):
    """(pattern, width, mAP, Rank-1) of every evaluation."""
    assert done.returncode == 0, done.stderr
    return [
        (int(pattern), int(width), float(average), float(first))
        for pattern, width, average, first in RESULT.findall(done.stdout)
    ]


def read_files(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_training_evaluates_all_patterns_each_epoch_and_changes_no_file(checkout):
    """Without HDM and ATM too, where DeMo evaluates one."""
    before = read_files(checkout)
    done = launch(checkout, "train_net.py", *SIZE, *ON, "OUTPUT_DIR", "run")
    assert [actual[:2] for actual in parse_results(done)] == 2 * [
        (1, 3 * WIDTH),
        (2, 3 * WIDTH),
        (3, 6 * WIDTH),
    ]
    assert all("loss" not in line or "nan" not in line for line in done.stdout.splitlines())
    after = read_files(checkout)
    assert {path.name for path in after if path not in before} == {"DeMobest.pth"}
    assert all(after[path] == content for path, content in before.items())


def test_off_the_scripts_output_is_that_of_the_script(checkout):
    done = launch(checkout, "train_net.py", *SIZE, *FUSED)
    plain = subprocess.run(
        [sys.executable, "train_net.py", *SIZE, *FUSED],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.stdout == plain.stdout and len(parse_results(done)) == 6


def test_a_checkpoint_takes_the_place_of_the_named_file(checkout):
    trained = launch(checkout, "train_net.py", *SIZE, *ON, *FUSED, "OUTPUT_DIR", "run")
    done = launch(checkout, "--weight", "run/DeMobest.pth", "test_net.py", *SIZE, *ON, *FUSED)
    assert parse_results(done) == [parse_results(trained)[-1]]
    fast = launch(
        checkout, "--fast", "--weight", "run/DeMobest.pth", "test_net.py", *SIZE, *ON, *FUSED
    )
    ((pattern, width, *numbers),) = parse_results(fast)
    assert (pattern, width) == parse_results(done)[0][:2] and numbers == pytest.approx(
        parse_results(done)[0][2:], abs=1e-6
    )
    assert "--fast replaces, in evaluation: utils.metrics.eval_func, " in fast.stdout
    weights = torch.load(checkout / "run" / "DeMobest.pth", weights_only=True)
    assert {"sdtps", "bottleneck_sdtps", "classifier_sdtps"} < {
        name.partition(".")[0] for name in weights
    }


def test_fast_training_is_the_same_and_msvr310_can_be_evaluated(checkout):
    """np.str, which the checkout asks for, is gone from NumPy."""
    plain = launch(checkout, "train_net.py", *SIZE, *ON, *FUSED, "DATASETS.NAMES", "MSVR310")
    assert plain.returncode == 1 and "np.str" in plain.stderr
    fast = launch(
        checkout, "--fast", "train_net.py", *SIZE, *ON, *FUSED, "DATASETS.NAMES", "MSVR310"
    )
    assert [actual[0] for actual in parse_results(fast)] == [1, 2, 3, 1, 2, 3]
    losses = [
        [line for line in done.stdout.splitlines() if "loss" in line] for done in (plain, fast)
    ]
    assert losses[0] and losses[1][: len(losses[0])] == losses[0]


def test_fast_leaves_features_that_are_not_normalised_to_the_checkout():
    """Those of length 1 are re-ranked by this project, to the same distances."""
    script = (
        "import torch; from pathlib import Path; from demo_sdtps.plug_in.fast import replace_ranking; "
        "from demo_sdtps.plug_in.launch import Checkout; checkout = Checkout(Path()); "
        "original = checkout.find('utils.reranking', 're_ranking'); replace_ranking(checkout); "
        "fast = checkout.find('utils.metrics', 're_ranking'); torch.manual_seed(0); "
        "sides = 3 * torch.randn(5, 8), torch.randn(9, 8); "
        "unit = [torch.nn.functional.normalize(side) for side in sides]; "
        "gaps = [abs(fast(*each, 6, 3, 0.3) - original(*each, 6, 3, 0.3)).max() for each in (sides, unit)]; "
        "assert gaps[0] == 0 and gaps[1] < 1e-3, gaps"
    )
    subprocess.run([sys.executable, "-c", script], cwd=HOST, check=True)


def test_torchruns_local_rank_reaches_the_script_that_reads_it(checkout):
    train, test = (
        launch(checkout, script, *SIZE, "SOLVER.MAX_EPOCHS", "0", LOCAL_RANK="3")
        for script in ("train_net.py", "test_net.py")
    )
    assert "local rank 3" in train.stdout
    assert "unrecognized" not in test.stderr and "your_model.pth" in test.stderr


def test_another_checkout_is_refused_in_one_sentence(checkout):
    loop = checkout / "engine" / "processor.py"
    loop.write_text(loop.read_text().replace("def training_neat_eval", "def evaluate"))
    done = launch(checkout, "train_net.py", *SIZE, *ON)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: "), done.stderr
    assert (
        "it has no engine.processor.training_neat_eval" in done.stderr
        and "Traceback" not in done.stderr
    )
