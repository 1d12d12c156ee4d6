"""Training steps and the loops of evaluation ask a GPU for no value, so that the CPU stays ahead of it (engine/transfer.py).

The GPU is fake (tests/fake_gpu.py): what it computes is not known. tools/gpu_check.py asks a real one.
"""
from unittest import mock

import pytest
import torch
from commands import ROOT, SMALL
from fake_gpu import GPU, Gradients, WaitsError, fake_gpu
from seps_tiny import cfg_for
from tiny import CAMERAS, CLASSES, random_images, tiny_model
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from demo_sdtps.config import load_cfg
from demo_sdtps.config.scores import MASK
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import train_loader
from demo_sdtps.engine.evaluation import extraction
from demo_sdtps.engine.evaluation.extraction import CASES, extract_features
from demo_sdtps.engine.evaluation.protocol import make_test_data
from demo_sdtps.engine.reid import ReIDTrainer
from demo_sdtps.engine.transfer import Arrival, on_cpu, to_device
from demo_sdtps.modeling import make_model
from demo_sdtps.seps import evaluation as seps_evaluation
from demo_sdtps.seps.captions import caption_loader
from demo_sdtps.seps.evaluation import make_retrieval_data, read_caption_splits, similarities
from demo_sdtps.seps.model import make_seps
from demo_sdtps.seps.towers import load_tokenizer
from demo_sdtps.seps.training import SEPSTrainer

QUICKEST = ("DeMo_SDTPS", "saliency")
STILL = ("SOLVER.AMP", "off", "SOLVER.LOG_PERIOD", "1", "SOLVER.GRAD_CLIP", "5")
TWO_STEPS = ("SOLVER.IMS_PER_BATCH", "24", "DATALOADER.NUM_INSTANCE", "4")
SOME_CASES = [CASES["nothing"], CASES["r"]]


def each(name, *values):
    return pytest.mark.parametrize(name, [value if value in QUICKEST else pytest.param(value, marks=pytest.mark.slow)
                                          for value in values])


WAITING = {
    "a value": lambda on_gpu: on_gpu.sum().item(),
    "a condition": lambda on_gpu: bool(on_gpu.isfinite().all()),
    "a list": lambda on_gpu: on_gpu.tolist(),
    "a mask": lambda on_gpu: on_gpu[on_gpu > 0],
    "distinct values": lambda on_gpu: on_gpu.unique(),
    "a copy to the CPU": lambda on_gpu: on_gpu.cpu(),
    "a copy from the CPU": lambda on_gpu: torch.ones(4).to(on_gpu.device),
    "a tensor of numbers": lambda on_gpu: torch.tensor([1.0, 2.0], device=on_gpu.device),
    "an index on the CPU": lambda on_gpu: on_gpu[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_for_a_gpu_is_found(what):
    with fake_gpu() as gpu:
        on_gpu = torch.ones(4, device=GPU)
        gpu.is_strict = True
        with pytest.raises((WaitsError, DataDependentOutputException, DynamicOutputShapeException)):
            WAITING[what](on_gpu)


def test_what_does_not_wait_for_a_gpu():
    with fake_gpu() as gpu:
        gpu.is_strict = True
        there = to_device(torch.ones(3, 4), GPU)
        assert there.device == GPU and not Arrival(there.softmax(dim=1)).has_come()
        assert torch.tensor([1.0, 2.0]).tolist() == [1, 2]  # what is on the CPU alone has values


@each("name", "DeMo_SDTPS", "DeMo_Slim")
def test_training_and_evaluation(name, tiny_root):
    """An epoch with a progress bar that is updated at every step, and features of complete and of incomplete triplets."""
    cfg = load_cfg(ROOT / "configs" / "Synthetic" / f"{name}.yml",
                   ["DATASETS.ROOT_DIR", str(tiny_root), *SMALL, *STILL, *TWO_STEPS])
    splits = read_splits(cfg)
    test_data = make_test_data(cfg, splits["query"], splits["gallery"])
    model, loader = make_model(cfg, CLASSES + 1, CAMERAS), train_loader(cfg, splits["train"])
    with fake_gpu(model) as gpu:
        trainer = ReIDTrainer(cfg, model, loader, test_data, {})
        run_epoch(gpu, trainer)
        with mock.patch.object(extraction, "check_features") as checked:
            extract_features(cfg, model, test_data.loader, SOME_CASES)
        assert checked.called


def run_epoch(gpu, trainer):
    assert trainer.device == GPU
    Gradients.of = tuple(trainer.model.parameters())
    gpu.is_strict = True
    trainer.train_epoch()
    assert len(trainer.monitor.pending) == trainer.step == len(trainer.loader) > 1


@each("score", "attention", "saliency", "supervised", "tome")
def test_scores_of_patches(score):
    settings = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.5,0.5]", "MODEL.SLIM_SCORE", score,
                "INPUT.JOINT_AUGMENTATION", "True")
    model = tiny_model(*settings)
    with fake_gpu(model) as gpu:
        images, cameras = random_images(0)
        images = {name: to_device(image, GPU) for name, image in {**images, MASK: images["RGB"][:, :1].abs()}.items()}
        gpu.is_strict = True
        model.train()(images, to_device(cameras, GPU))
        model.eval().extract_features(images, cameras, SOME_CASES[1:])


@pytest.mark.slow
def test_seps(shapes_root):
    cfg = cfg_for(shapes_root, "MODEL.PAPER_VERSION", "True", "SOLVER.IMS_PER_BATCH", "12", *STILL)
    splits, tokenizer = read_caption_splits(cfg), load_tokenizer(cfg)
    loader, dev = caption_loader(cfg, splits["train"], tokenizer), make_retrieval_data(cfg, splits["dev"], tokenizer, 2)
    model = make_seps(cfg)[0]
    with fake_gpu(model) as gpu:
        run_epoch(gpu, SEPSTrainer(cfg, model, loader, dev, dev, {}))
        with (mock.patch.object(seps_evaluation, "check_features") as checked,
              mock.patch.object(seps_evaluation, "check_finite")):
            assert similarities(model, dev).shape == (len(splits["dev"].paths), len(splits["dev"].captions))
        assert checked.called


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_real_gpu_is_not_waited_for(tiny_root):
    words = ["DATASETS.ROOT_DIR", str(tiny_root), *SMALL, *STILL, *TWO_STEPS, "MODEL.DEVICE", "cuda"]
    cfg = load_cfg(ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml", words)
    splits = read_splits(cfg)
    test_data = make_test_data(cfg, splits["query"], splits["gallery"])
    trainer = ReIDTrainer(cfg, make_model(cfg, CLASSES + 1, CAMERAS).cuda(), train_loader(cfg, splits["train"]), test_data, {})
    for mode in ("default", "error"):  # first without, for what is done once
        torch.cuda.set_sync_debug_mode(mode)
        try:
            trainer.train_epoch()
            extract_features(cfg, trainer.model, test_data.loader, SOME_CASES)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        trainer.step = 0


def test_tensors_come_to_the_cpu_one_batch_late():
    """So that the work on the next batch has begun; and they are what was given."""
    order, given = [], [[torch.full((2,), float(number)), torch.tensor(number)] for number in range(3)]

    def batches():
        for number, tensors in enumerate(given):
            order.append(f"begun {number}")
            yield tensors

    found = []
    for tensors in on_cpu(batches()):
        order.append(f"here {len(found)}")
        found.append(tensors)
    assert order == ["begun 0", "begun 1", "here 0", "begun 2", "here 1", "here 2"]
    assert all(torch.equal(one, other) for tensors, batch in zip(found, given, strict=True)
               for one, other in zip(tensors, batch, strict=True))
    assert list(on_cpu([])) == []
