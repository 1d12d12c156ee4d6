"""A run that is interrupted resumes as if nothing had happened (training/trainer.py), and says why where it cannot."""
import json
import re
import resource
import shutil
import subprocess
import sys
import time

import pytest
import torch
from commands import ONE_LINE, ROOT, contents, records_of
from interrupted import EVERY_STEP, assert_same, at, call, cli_args_for, kill, terminate
from seps_tiny import cli_args_for as seps_cli_args_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from demo_sdtps import train_net, train_seps
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.modeling.checkpoint import read_checkpoint
from demo_sdtps.seps import training
from demo_sdtps.seps.schema import SEPS_SCHEMA
from demo_sdtps.training import reid
from demo_sdtps.training.digest import DIGEST, digest_data
from demo_sdtps.training.resume import RESUMABLE_KEYS, find_run
from demo_sdtps.training.trainer import Trainer

AUTO = ("RESUME", "auto")


@pytest.fixture(scope="module", autouse=True)
def in_the_root():
    """Every run of this module finds its configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def reference(tiny_root, tmp_path_factory):
    """An uninterrupted run that saves at its end alone → its folder."""
    output = tmp_path_factory.mktemp("reference") / "run"
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, "SOLVER.CHECKPOINT_MINUTES", "0")) == 0
    return output


@pytest.fixture(scope="module")
def stopped(tiny_root, tmp_path_factory):
    """A run that SIGTERM ended in its second epoch → its folder, for tests to copy."""
    output = tmp_path_factory.mktemp("stopped") / "run"
    with at(Trainer, "_train_step", 8, terminate):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *EVERY_STEP)) == 0
    return output


@pytest.fixture
def copied(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


@pytest.fixture
def fails(command):
    """Call train_net.py, which must end with one sentence: → that sentence."""
    def found(words):
        code, _, stderr = command(train_net.main, *words)
        said = stderr.strip().splitlines()[-1]
        assert code == 2 and said.startswith(ONE_LINE) and said.endswith(".") and "Traceback" not in stderr
        return said

    return found


PLACES = {
    "in a step": (Trainer, "_train_step", 9, kill, EVERY_STEP),
    "in the first step after a save between epochs": (Trainer, "_train_step", 7, kill, ("SOLVER.CHECKPOINT_PERIOD", "1")),
    "in a step, with two loading processes": (Trainer, "_train_step", 9, kill, (*EVERY_STEP, "DATALOADER.NUM_WORKERS", "2")),
    "in an evaluation": (reid, "evaluate_reid", 2, kill, EVERY_STEP),
    "between evaluation and saving": (Trainer, "_save", 2, kill, ("SOLVER.CHECKPOINT_PERIOD", "1")),
    "SIGTERM in an evaluation": (reid, "evaluate_reid", 2, terminate, ()),
    "before anything was saved": (Trainer, "_train_step", 9, kill, ("SOLVER.CHECKPOINT_MINUTES", "0")),
}


QUICKEST = ("in a step", "SIGTERM in an evaluation")


@pytest.mark.parametrize("place", [*QUICKEST, *(pytest.param(place, marks=pytest.mark.slow)
                                                for place in PLACES if place not in QUICKEST)])
def test_a_resumed_run_ends_like_an_uninterrupted_one(reference, tiny_root, tmp_path, place):
    owner, name, number, act, more = PLACES[place]
    words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", *AUTO, *more)
    with at(owner, name, number, act):
        assert call(words) == (130 if act is kill else 0)
    assert call(words) == 0
    assert_same(reference, tmp_path / "run")
    assert not (tmp_path / "run" / "last.previous.pth").exists()


@pytest.mark.parametrize("place", [
    pytest.param((Trainer, "_train_step", 5, kill), id="in a step"),
    pytest.param((training, "evaluate_retrieval", 2, terminate), id="SIGTERM in an evaluation", marks=pytest.mark.slow),
])
def test_seps_goes_on_likewise(shapes_root, tmp_path, place):
    words = seps_cli_args_for(shapes_root, "MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.DROP_PATH", "0.2", *AUTO, *EVERY_STEP)
    assert call([*words, "OUTPUT_DIR", tmp_path / "reference"], train_seps.main) == 0
    with at(*place):
        assert call([*words, "OUTPUT_DIR", tmp_path / "run"], train_seps.main) == (130 if place[-1] is kill else 0)
    assert call([*words, "OUTPUT_DIR", tmp_path / "run"], train_seps.main) == 0
    assert_same(tmp_path / "reference", tmp_path / "run")


def test_sigterm_finishes_the_step_and_saves(stopped):
    last = torch.load(stopped / "last.pth", weights_only=True)
    assert (last["epoch"], last["step"]) == (1, 8 - steps_of_the_first_epoch(stopped))
    assert json.loads((stopped / "run.json").read_text())["status"] == "stopped"
    assert "stopped by SIGTERM" in (stopped / "log.txt").read_text() and (stopped / "last.previous.pth").exists()


def steps_of_the_first_epoch(folder):
    """By what last.pth tells of the second: 8 steps were taken in all."""
    last = torch.load(folder / "last.pth", weights_only=True)
    assert last["meter"]["seen"] == 8 * last["step"]  # batches of 8
    return 8 - last["step"]


def test_what_is_written_goes_on_too(copied, reference, tiny_root):
    """log.txt, run.json and TensorBoard, where the killed run was ahead of its checkpoint."""
    with SummaryWriter(copied) as board:  # a point of an epoch that the checkpoint does not have
        board.add_scalar("train/loss", 99.0, 2)
    time.sleep(1.1)  # TensorBoard reads files in the order of their names, which begin with the second
    before = (copied / "log.txt").read_text()
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", copied, "RESUME", "True")) == 0
    assert_same(reference, copied)
    log = (copied / "log.txt").read_text()
    assert log.startswith(before) and "continuing after epoch 1 and " in log[len(before):] and "may differ" not in log
    run = json.loads((copied / "run.json").read_text())
    assert run["status"] == "finished" and "error" not in run and EVERY_STEP[0] in run["command"]
    (entry,) = run["resumptions"]
    assert (entry["epoch"], entry["checkpoint"]) == (1, "last.pth") and entry["step"] > 0 and "RESUME" in entry["command"]
    board = EventAccumulator(str(copied))
    board.Reload()
    points = [(event.step, event.value) for event in board.Scalars("train/loss")]
    assert points == [(record["epoch"], pytest.approx(record["loss"], rel=1e-5)) for record in records_of(copied)]


def test_nothing_is_left_to_do(reference, tiny_root, command):
    before = contents(reference)
    code, stdout, _ = command(train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", reference, *AUTO))
    assert code == 0 and "is finished (epoch 3); nothing is left to do." in stdout and contents(reference) == before


def test_another_machine_is_a_warning(copied, tiny_root):
    record = json.loads((copied / "run.json").read_text())
    now = {"torch": record["versions"]["torch"], "cpu": record["machine"]["cpu"], "threads": record["machine"]["threads"]}
    record["machine"] |= {"cpu": "ABACUS", "threads": 64}
    record["versions"]["torch"] = "0.4"
    (copied / "run.json").write_text(json.dumps(record))
    with at(Trainer, "_train_step", 1, kill):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", copied, *AUTO)) == 130
    warning = (f"the run started with torch 0.4 (now {now['torch']}), cpu ABACUS (now {now['cpu']}), threads 64 (now "
               f"{now['threads']}): its numbers may differ from those of an unbroken run")
    assert f"WARNING {warning}" in (copied / "log.txt").read_text()


def test_a_finished_run_can_be_made_longer(reference, tiny_root, tmp_path):
    output = shutil.copytree(reference, tmp_path / "run")
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *AUTO, "SOLVER.MAX_EPOCHS", "4")) == 0
    records = records_of(output)
    assert records[:3] == records_of(reference) and [record["epoch"] for record in records] == [1, 2, 3, 4]


@pytest.mark.parametrize(("words", "opts", "parts"), [
    ([], ("RESUME", "yes"), ["holds no run to continue"]),
    (["--overwrite"], AUTO, ["--overwrite", "RESUME auto", "leave one of them out"]),
    ([], ("RESUME", "maybe"), ["RESUME", "'auto'"]),
])
def test_what_cannot_be_continued(fails, tiny_root, tmp_path, words, opts, parts):
    said = fails([*words, *cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", *opts)])
    assert all(part in said for part in parts) and not (tmp_path / "run").exists()


def test_auto_does_not_replace_what_it_cannot_continue(fails, tiny_root, tmp_path):
    (tmp_path / "best.pth").write_text("of somebody else")
    assert "already holds a run (best.pth)" in fails(cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path, *AUTO))
    assert contents(tmp_path) == {"best.pth": b"of somebody else"}


@pytest.mark.parametrize(("key", "value", "parts"), [
    ("SOLVER.BASE_LR", "0.5", ["SOLVER.BASE_LR is 0.5", "started with 0.00"]),
    ("SOLVER.SEED", "7", ["SOLVER.SEED is 7", "started with 1111"]),
    ("MODEL.SDTPS_USE_GUMBEL", "False", ["MODEL.SDTPS_GUMBEL_SELECT is False", "started with True", "1 more keys differ"]),
])
def test_another_configuration_is_refused(fails, copied, tiny_root, key, value, parts):
    before = contents(copied)
    more = ("MODEL.SDTPS_GUMBEL_SELECT", "False") if "GUMBEL" in key else ()
    said = fails(cli_args_for(tiny_root, "OUTPUT_DIR", copied, *AUTO, key, value, *more))
    assert all(part in said for part in parts) and contents(copied) == before


def without_guide_missing(text):
    """A configuration as it was before that key."""
    (line,) = re.findall(r"^  SDTPS_GUIDE_MISSING: .*\n", text, re.M)
    return text.replace(line, "")


def test_a_key_newer_than_the_run_counts_as_its_default(fails, copied, reference, tiny_root):
    last = torch.load(copied / "last.pth", weights_only=True)
    torch.save(last | {"config": without_guide_missing(last["config"])}, copied / "last.pth")
    words = cli_args_for(tiny_root, "OUTPUT_DIR", copied, *AUTO)
    said = fails([*words, "MODEL.SDTPS_GUIDE_MISSING", "False"])
    assert "MODEL.SDTPS_GUIDE_MISSING is False" in said and "started with True" in said
    assert call(words) == 0
    assert_same(reference, copied)


@pytest.mark.parametrize(("words", "schema", "key", "other"), [
    (cli_args_for, DEMO_SCHEMA, "MODEL.SDTPS_GUIDE_MISSING", ("False",)),
    (seps_cli_args_for, SEPS_SCHEMA, "SOLVER.GRAD_CLIP", ("4.0",))])
def test_likewise_for_a_run_without_a_checkpoint(tmp_path, words, schema, key, other):
    """It starts again; with another value of that key it is another run."""
    def configuration(*more):
        _, file, *opts = words(tmp_path, "OUTPUT_DIR", tmp_path, *AUTO, *more)
        return load_cfg(file, list(map(str, opts)), schema)

    lines = configuration().dump().splitlines()
    left = [line for line in lines if not line.startswith(f"  {key.partition('.')[2]}: ")]
    assert len(left) == len(lines) - 1
    (tmp_path / "config.yml").write_text("\n".join(left))
    (tmp_path / "metrics.json").write_text("[]")
    assert find_run(configuration(), False, schema) is None
    with pytest.raises(UserError, match="already holds a run"):
        find_run(configuration(key, *other), False, schema)


def test_harmless_keys_exist():
    assert set(RESUMABLE_KEYS) < DEMO_SCHEMA.by_name.keys()


def test_other_data_are_refused(fails, copied, own_root, tmp_path, reference):
    moved = tmp_path / "moved"
    own_root.rename(moved)
    twin = shutil.copytree(copied, tmp_path / "twin")
    assert call(cli_args_for(moved, "OUTPUT_DIR", twin, *AUTO)) == 0  # the same data in another place
    assert_same(reference, twin)
    first = sorted((moved / "RGBNT201" / "test" / "NI").iterdir())[0]
    first.write_bytes(first.read_bytes() + b"0")
    assert "the run in" in (said := fails(cli_args_for(moved, "OUTPUT_DIR", copied, *AUTO))) and "'query NI'" in said


def test_the_digest_of_data_has_names_order_sizes_and_texts(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.jpg")]
    for path in paths:
        open(path, "w").close()
    digest = digest_data(str(tmp_path), {"train": paths}, {"captions": ["a dog", "a cat"]})
    assert digest == digest_data(str(tmp_path), {"train": paths}, {"captions": ["a dog", "a cat"]})
    others = [({"train": paths[::-1]}, ["a dog", "a cat"]), ({"train": paths[:1]}, ["a dog", "a cat"]),
              ({"train": paths}, ["a cat", "a dog"])]
    assert all(digest != digest_data(str(tmp_path), files, {"captions": texts}) for files, texts in others)
    (tmp_path / "b.jpg").write_text("longer")
    assert digest["train"] != digest_data(str(tmp_path), {"train": paths})["train"]


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip_a_bit(path):
    """In the middle of the weights, where torch would not notice."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "cut short": (cut_short, "cannot be read as a checkpoint"),
    "a flipped bit": (flip_a_bit, "is damaged (the checksum of its part"),
    "weights alone": (lambda path: torch.save({"model": {}}, path), "holds no state to continue from (no 'epoch' in it"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(copied, fails, tiny_root, caplog, kind):
    damage, reason = DAMAGES[kind]
    damage(copied / "last.pth")
    words = cli_args_for(tiny_root, "OUTPUT_DIR", copied, *AUTO)
    with at(Trainer, "_train_step", 1, kill):
        assert call(words) == 130
    assert f"{copied / 'last.pth'} {reason}" in caplog.text
    assert f"from {copied / 'last.previous.pth'}" in (copied / "log.txt").read_text()

    assert not (copied / "last.pth").exists()

    damage(copied / "last.previous.pth")
    shutil.copy(copied / "last.previous.pth", copied / "last.pth")
    said = fails(words)
    assert said.count(reason) == 2 and "last.pth" in said and "last.previous.pth" in said and "--overwrite" in said


def test_the_previous_checkpoint_leads_to_the_same_end(copied, reference, tiny_root):
    cut_short(copied / "last.pth")
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", copied, *AUTO)) == 0
    assert_same(reference, copied)


@pytest.mark.slow
def test_a_full_disk_leaves_the_checkpoint_that_is_there(copied, reference, tiny_root):
    """A write that really fails: no file may become larger than half a megabyte."""
    before = contents(copied)
    limit = 500_000
    assert len(before["last.pth"]) > 2 * limit
    words = cli_args_for(tiny_root, "OUTPUT_DIR", copied, *AUTO, *EVERY_STEP)
    done = subprocess.run([sys.executable, "train_net.py", *map(str, words)], cwd=ROOT, capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert said.startswith(f"{ONE_LINE}The output {copied / 'last.pth'} cannot be written (File too large); free some space")
    after = contents(copied)
    assert all(after[name] == before[name] for name in ("last.pth", "last.previous.pth", "best.pth", "metrics.json"))
    assert not [name for name in after if name.endswith(".part")]
    assert json.loads(after["run.json"])["status"] == "failed"
    assert call(words) == 0  # with room again
    assert_same(reference, copied)


def in_version_0_1(path):
    """Write a checkpoint as version 0.1 did: the backbone is called "trunk", and of the data there are the names alone."""
    content = torch.load(path, weights_only=True)
    renamed = {re.sub(r"^backbone\.", "trunk.", name): tensor for name, tensor in content["model"].items()}
    assert renamed.keys() != content["model"].keys()
    content.pop(DIGEST)
    torch.save(content | {"model": renamed, "data": 2221313506}, path)


def test_a_run_of_version_0_1_goes_on(copied, reference, tiny_root):
    in_version_0_1(copied / "last.pth")
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", copied, "RESUME", "yes")) == 0
    assert_same(reference, copied)


def test_a_checkpoint_of_version_0_1_holds_the_same_model(reference, tmp_path):
    earlier = shutil.copy(reference / "last.pth", tmp_path)
    in_version_0_1(earlier)
    now, then = (read_checkpoint(path) for path in (reference / "last.pth", earlier))
    assert (then.num_class, then.camera_num, then.dataset) == (now.num_class, now.camera_num, now.dataset)
    assert then.model.keys() == now.model.keys() and all(torch.equal(then.model[name], now.model[name]) for name in now.model)
