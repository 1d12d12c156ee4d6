"""Rows of benchmarks/run.py: the whole model, CLIP ViT-B/16 with HDM and ATMoE, beside DeMo's reference formulation; and these
two modules alone."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

from benchmarks.rows import Row, check_near, compare, peak_memory, ratio_row
from benchmarks.timing import CAMERAS, CLASSES, random_batch, training_step
from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.evaluation.operations import count_macs, count_parameters
from demo_sdtps.evaluation.protocol import TestData, evaluate_reid, make_test_data
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.names import from_demo
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.fusion import HDM, ATMoE
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.modeling.precision import inference
from demo_sdtps.runtime.device import autocast, choose_device, choose_precision
from demo_sdtps.training.optim import make_optimizer
from synthetic import pedestrians, triplets
from tests.reference import demo as reference_demo
from tests.reference import demo_ranking
from tests.reference.fusion import Fusion  # which the tests compare with

BATCH, FEW, GPU_BATCH = 8, 2, 64
GPU_ROUNDS = 20
FUSION_TARGET = 30  # speed-up of HDM and ATMoE over the reference formulation


def models_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Size of the models of RGBNT201 and of the slimmed one of vehicles."""
    names = ("Baseline", "DeMo_SDTPS", "DeMo", "DeMo_with_SDTPS", "DeMo_Slim")
    models = [*(f"RGBNT201/{name}" for name in names), "RGBNT100/DeMo_Slim"]
    for name in models[: 1 if quick else None]:
        cfg = load_cfg(f"{name}.yml", ["MODEL.PRETRAIN_PATH_T", "none"])
        model = make_model(cfg, CLASSES, CAMERAS).eval()
        parameters = sum(count_parameters(model).values()) / 1e6
        yield Row(f"{name}: trainable parameters", None, parameters, "M", None)
        macs = count_macs(cfg, model)[""] / 1e9
        yield Row("… multiply-accumulates of a triplet", None, macs, "G", None)


class Sides:
    """The reference model and ours with the same weights, and a random batch for them."""

    def __init__(self, cfg: CfgNode, batch: int):
        torch.manual_seed(0)
        self.cfg, self.device = cfg, choose_device(cfg)
        self.reference = reference_demo.Demo(
            cfg.INPUT.SIZE_TRAIN, CLASSES, CAMERAS, cfg.MODEL.HEAD, cfg.MODEL.SIE_COE
        ).to(self.device)
        self.ours = make_model(cfg, CLASSES, CAMERAS).to(self.device)
        self.ours.load_state_dict(from_demo(self.reference.state_dict()))
        self.batch = random_batch(cfg, batch, self.device)

    @torch.no_grad()
    def infer(self, model: nn.Module, precision: torch.dtype | None = None) -> torch.Tensor:
        """Original and enhanced features (B, D), under autocast in `precision`, if given."""
        with autocast(self.device, precision):
            return model.eval()(self.batch.images, self.batch.cameras)

    def step(self, model: nn.Module, precision: torch.dtype | None = None) -> Callable[[], None]:
        cfg, weights = self.cfg, self.ours.head_weights
        if model is self.ours:
            optimizer = make_optimizer(cfg, model)
        else:
            rate, decay = cfg.SOLVER.BASE_LR, cfg.SOLVER.WEIGHT_DECAY
            optimizer = reference_demo.make_optimizer(model, rate, decay)
        model.train()
        step = training_step(cfg, model, optimizer, precision, weights)
        return partial(step, self.batch)


def configuration(*opts: str) -> CfgNode:
    """RGBNT201's DeMo as published, with KEY, VALUE, … of `opts`."""
    return load_cfg("RGBNT201/DeMo.yml", list(opts))


def model_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Beside the reference in float32; on a GPU also beside the reference in the same precision."""
    rounds = 1 if quick else GPU_ROUNDS if device.type == "cuda" else 2
    yield from precision_rows(
        FEW if quick else BATCH, rounds, precisions(device), with_memory=not quick
    )
    if device.type == "cuda":
        yield from precision_rows(GPU_BATCH, rounds, (None, torch.bfloat16), are_alike=True)


def precisions(device: torch.device) -> list[torch.dtype | None]:
    """None for float32, and bfloat16 where the device has instructions for it: without, a step takes minutes."""
    return [None, torch.bfloat16] if choose_precision("auto", device) is torch.bfloat16 else [None]


def precision_rows(
    batch: int,
    rounds: int,
    halves: Sequence[torch.dtype | None],
    are_alike: bool = False,
    with_memory: bool = False,
) -> Iterator[Row]:
    """Inference and training step in each precision: time, and cosine similarity of features. The reference is in float32 or,
    where both `are_alike`, under the same autocast."""
    for half in halves:
        sides, theirs = Sides(configuration(), batch), half if are_alike else None
        what = f"{'both in ' if are_alike else ''}{precision_name(half)}, {batch} triplets"
        infer_reference = partial(sides.infer, sides.reference, theirs)
        infer_ours = partial(sides.infer, sides.ours)
        expected = infer_ours()
        check_near("inference", expected, sides.infer(sides.reference))
        with inference(sides.ours, half):  # weights are cast once for all batches
            target = None if are_alike else 4 if half else 1
            row = compare(
                f"inference, {what}", infer_reference, infer_ours, rounds, sides.device, target
            )
            cosine = F.cosine_similarity(infer_ours(), expected).min().item()
        yield row
        if half:
            name, target = "… least cosine of its features to float32's", "≥ 0.999"
            yield Row(name, None, cosine, "", None, target, cosine >= 0.999)
        steps = sides.step(sides.reference, theirs), sides.step(sides.ours, half)
        target = None if are_alike else 3 if half else 1.1
        yield compare(f"training step, {what}", *steps, rounds, sides.device, target)
        # Frees memory for the processes that follow.
        del sides, steps, infer_reference, infer_ours
        if with_memory and not half:
            memory = (peak_memory(train, side, batch // 2) for side in ("reference", "ours"))
            title = f"… peak memory of a process, {batch // 2} triplets"
            yield ratio_row(title, *memory, at_least=1, unit="MiB")


def train(side: str, batch: int) -> None:
    sides = Sides(configuration(), batch)
    step = sides.step(sides.reference if side == "reference" else sides.ours)
    for _ in range(2):
        step()


def evaluation_rows(quick: bool, device: torch.device) -> list[Row]:
    """The evaluation of an epoch, from images on disk to mAP for three return patterns: one pass beside three. On a GPU of more
    images."""
    small = ("INPUT.SIZE_TRAIN", "[64, 32]", "INPUT.SIZE_TEST", "[64, 32]") if quick else ()
    is_large = device.type == "cuda" and not quick
    identities, batch = (16, GPU_BATCH) if is_large else (2, BATCH)
    with tempfile.TemporaryDirectory() as root:
        data_keys = ("DATASETS.ROOT_DIR", root, "DATASETS.CACHE", "no")
        cfg = configuration(*data_keys, "TEST.IMS_PER_BATCH", str(batch), *small)
        height, width = cfg.INPUT.SIZE_TEST
        # 4 triplets of each
        drawing = {"images_per_camera": 1, "height": height, "width": width, "seed": 0}
        triplets.write_data_set(Path(root) / triplets.FOLDER, pedestrians, 2, identities, **drawing)
        sides = Sides(cfg, FEW)
        splits = read_splits(cfg, ("query", "gallery"))
        data = make_test_data(cfg, splits["query"], splits["gallery"])
        maps: dict[str, torch.Tensor] = {}

        def evaluate_reference() -> None:
            values = [reference_evaluation(sides, data, pattern) for pattern in RETURN_PATTERNS]
            maps["reference"] = torch.tensor(values)

        def evaluate_ours() -> None:
            (rankings,) = evaluate_reid(cfg, sides.ours, data).values()
            maps["ours"] = torch.tensor([ranking.mAP for ranking in rankings.values()])

        what = f"evaluation of an epoch, {len(data.samples)} triplets"
        row = compare(what, evaluate_reference, evaluate_ours, 1, sides.device, 3)
        # Where rounding decides which of two images is nearer, an AP of three matches or more may differ by up to a sixth.
        check_near("evaluation", maps["ours"], maps["reference"], 0.17 / len(data.query))
        return [row]


def reference_evaluation(sides: Sides, data: TestData, pattern: int) -> float:
    """mAP of one return pattern, from a pass of its own."""
    batch_features = []
    precision = choose_precision(sides.cfg.TEST.AMP, sides.device)
    with torch.no_grad(), autocast(sides.device, precision):
        for batch in batches(data.loader):
            batch = batch.to(sides.device)
            batch_features.append(sides.reference.eval()(batch.images, batch.cameras, pattern))
    features = F.normalize(torch.cat(batch_features).float(), dim=1).cpu()
    query, gallery = features[data.query], features[data.gallery]
    one, other = data.labels
    labels = one.identity, other.identity, one.camera, other.camera
    return demo_ranking.evaluate_distances(torch.cdist(query, gallery).square().numpy(), *labels)[1]


def precision_name(precision: torch.dtype | None) -> str:
    return str(precision or torch.float32).removeprefix("torch.")


class Fast(nn.Module):
    """HDM and ATMoE as the model has them, with a reference fusion's weights."""

    def __init__(self, reference: Fusion):
        super().__init__()
        weights = reference.state_dict()
        weights = from_demo({f"generalFusion.{name}": tensor for name, tensor in weights.items()})
        width = weights["hdm.query"].shape[1]
        self.hdm = HDM(width)
        self.atmoe = ATMoE(width, width // weights["atmoe.expert_weight"].shape[-1])
        self.load_state_dict(weights, assign=True)

    def forward(self, patches: ByModality, global_feats: ByModality) -> torch.Tensor:
        return self.atmoe(self.hdm(patches, global_feats))


def fusion_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """HDM and ATMoE against seven attentions and a loop over the experts. Raises `RuntimeError` where the outputs differ."""
    cfg = load_cfg("RGBNT201/DeMo.yml")
    torch.manual_seed(cfg.SOLVER.SEED)
    batch, rounds = (2, 1) if quick else (64, GPU_ROUNDS if device.type == "cuda" else 2)
    backbone = make_backbone(cfg, camera_num=1)  # only for its shapes
    width, count = backbone.width, backbone.num_patches
    reference = Fusion(width, cfg.MODEL.HEAD).to(device)
    ours = Fast(reference)
    whole = {name: torch.randn(batch, 1 + count, width, device=device) for name in MODALITIES}
    global_feats = {name: torch.randn(batch, width, device=device) for name in MODALITIES}
    # Patches are views of tokens that begin with a class token, as from the backbone.
    tokens = {name: rows[:, 1:] for name, rows in whole.items()}, global_feats
    check_near("HDM + ATMoE", fuse(ours, tokens), fuse(reference, tokens))
    works = ("evaluation", fuse, 2 * rounds), ("training step", fusion_step, rounds)
    for kind, work, times in works:
        sides = partial(work, reference, tokens), partial(work, ours, tokens)
        what = f"HDM + ATMoE, {batch} triplets, {count} patches: {kind}"
        yield compare(what, *sides, times, device, FUSION_TARGET)


@torch.no_grad()
def fuse(module: nn.Module, inputs: tuple[ByModality, ByModality]) -> torch.Tensor:
    return module.eval()(*inputs)


def fusion_step(module: nn.Module, inputs: tuple[ByModality, ByModality]) -> None:
    module.zero_grad()
    leaves = [
        {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        for tensors in inputs
    ]
    module.train()(*leaves).sum().backward()
