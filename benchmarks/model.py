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

from benchmarks.rows import check_near, peak_memory, speed_row
from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.evaluation.operations import (
    count_macs,
    count_parameters,
    reference_hdm_macs,
    tokens_of_hdm,
)
from demo_sdtps.evaluation.protocol import TestData, evaluate_reid, make_test_data
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.names import from_demo
from demo_sdtps.modeling.fusion import HDM, ATMoE
from demo_sdtps.modeling.inference import inference
from demo_sdtps.modeling.slimming.tokens import ByModality
from demo_sdtps.reports.rows import Row
from demo_sdtps.runtime.device import autocast, choose_device, choose_precision
from demo_sdtps.synthetic import pedestrians
from demo_sdtps.training.optim import make_optimizer
from demo_sdtps.training.timing import CAMERAS, CLASSES, in_turns, random_batch, training_step
from tests.reference import demo as reference_demo
from tests.reference import demo_ranking
from tests.reference.fusion import Fusion  # which the tests compare with

BATCH, FEW, GPU_BATCH = 8, 2, 64
FUSION_TARGET = 30  # speed-up of HDM and ATMoE over the reference formulation
MIB = 2**20

Work = dict[str, Callable[[], object]]  # cases to time, by name


def models_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Size of the models of RGBNT201, beside HDM's reference formulation."""
    for name in ("Baseline", "DeMo_SDTPS", "DeMo", "DeMo_with_SDTPS", "DeMo_Slim")[
        : 1 if quick else None
    ]:
        cfg = load_cfg(f"RGBNT201/{name}.yml", ["MODEL.PRETRAIN_PATH_T", "none"])
        model = make_model(cfg, CLASSES, CAMERAS).eval()
        macs = count_macs(cfg, model)
        plain_hdm = (
            reference_hdm_macs(model.backbone.width, tokens_of_hdm(model)) if model.hdm else 0
        )
        before = (macs[""] - macs.get("hdm", 0) + plain_hdm) / 1e9
        yield Row(
            f"{name}: trainable parameters",
            None,
            sum(count_parameters(model).values()) / 1e6,
            "M",
            None,
        )
        yield Row(
            "… multiply-accumulates of a triplet",
            before,
            macs[""] / 1e9,
            "G",
            before * 1e9 / macs[""],
        )


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
        self.images, self.cameras, self.labels = random_batch(cfg, batch, self.device)

    @torch.no_grad()
    def infer(self, model: nn.Module, precision: torch.dtype | None = None) -> torch.Tensor:
        """Original and enhanced features (B, D), under autocast in `precision`, if given."""
        with autocast(self.device, precision):
            return model.eval()(self.images, self.cameras)

    def step(self, model: nn.Module, precision: torch.dtype | None = None) -> Callable[[], None]:
        solver = self.cfg.SOLVER
        optimizer = (
            make_optimizer(self.cfg, model)
            if model is self.ours
            else reference_demo.make_optimizer(model, solver.BASE_LR, solver.WEIGHT_DECAY)
        )
        step = training_step(
            self.cfg,
            model.train(),
            optimizer,
            self.cameras,
            self.labels,
            precision,
            self.ours.head_weights,
        )
        return partial(step, self.images)


def configuration(*opts: str) -> CfgNode:
    """RGBNT201's DeMo as published, with KEY, VALUE, … of `opts`."""
    return load_cfg("RGBNT201/DeMo.yml", list(opts))


def model_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Beside the reference in float32; on a GPU also beside the reference in the same precision."""
    yield from precision_rows(
        FEW if quick else BATCH, 1 if quick else 2, precisions(device), with_memory=not quick
    )
    if device.type == "cuda":
        yield from precision_rows(
            GPU_BATCH, 1 if quick else 5, (None, torch.bfloat16), are_alike=True
        )


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
    where both `are_alike`, under the same autocast; then, on a GPU, also the memory, and inference with compiled blocks."""
    for half in halves:
        sides, theirs = Sides(configuration(), batch), half if are_alike else None
        what = f"{'both in ' if are_alike else ''}{name_of(half)}, {batch} triplets"
        work: Work = {
            "reference": partial(sides.infer, sides.reference, theirs),
            "ours": partial(sides.infer, sides.ours),
        }
        expected = sides.infer(sides.ours)
        check_near("inference", expected, sides.infer(sides.reference))
        with inference(sides.ours, half):  # weights are cast once for all batches
            seconds = in_turns(f"inference, {what}", work, rounds, sides.device)
            cosine = F.cosine_similarity(sides.infer(sides.ours), expected).min().item()
        yield speed_row(f"inference, {what}", seconds, None if are_alike else 4 if half else 1)
        if half:
            yield Row(
                "… least cosine of its features to float32's",
                None,
                cosine,
                "",
                None,
                "≥ 0.999",
                cosine >= 0.999,
            )
        steps: Work = {
            "reference": sides.step(sides.reference, theirs),
            "ours": sides.step(sides.ours, half),
        }
        yield speed_row(
            f"training step, {what}",
            in_turns(f"training, {what}", steps, rounds, sides.device),
            None if are_alike else 3 if half else 1.1,
        )
        if are_alike and sides.device.type == "cuda":
            reference, ours = (
                allocated_memory(step, sides.device) / MIB for step in steps.values()
            )
            yield Row(
                "… memory beside models and optimisers", reference, ours, "MiB", reference / ours
            )
            with inference(sides.ours, half):
                sides.ours.backbone.compile_blocks()
                compiled = in_turns("compiled", {"ours": work["ours"]}, rounds, sides.device)
            yield speed_row(
                f"inference, {name_of(half)}, MODEL.COMPILE beside none",
                {"reference": seconds["ours"]} | compiled,
            )
        del sides, work, steps  # frees memory for the processes that follow
        if with_memory and not half:
            reference, ours = (
                peak_memory(train, side, batch // 2) / MIB for side in ("reference", "ours")
            )
            yield Row(
                f"… peak memory of a process, {batch // 2} triplets",
                reference,
                ours,
                "MiB",
                reference / ours,
                "≥ 1×",
                reference >= ours,
            )


def allocated_memory(step: Callable[[], object], device: torch.device) -> int:
    """Bytes that `step` allocates on a GPU at most, beside what is there before."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return torch.cuda.max_memory_allocated(device) - before


def train(side: str, batch: int) -> None:
    sides = Sides(configuration(), batch)
    step = sides.step(sides.reference if side == "reference" else sides.ours)
    for _ in range(2):
        step()


def evaluation_rows(quick: bool, device: torch.device) -> list[Row]:
    """The evaluation of an epoch, from images on disk to mAP for three return patterns: one pass beside three. On a GPU of more
    images, and also in bfloat16."""
    if quick or device.type == "cpu":
        return [evaluation_row(quick, 2, BATCH, "off")]
    return [evaluation_row(quick, 16, GPU_BATCH, mode) for mode in ("off", "bf16")]


def evaluation_row(quick: bool, identities: int, batch: int, mode: str) -> Row:
    """Of four triplets of each of the test `identities`, both sides in the precision of TEST.AMP `mode`."""
    small = ("INPUT.SIZE_TRAIN", "[64, 32]", "INPUT.SIZE_TEST", "[64, 32]") if quick else ()
    with tempfile.TemporaryDirectory() as root:
        cfg = configuration(
            "DATASETS.ROOT_DIR",
            root,
            "DATASETS.CACHE",
            "no",
            "TEST.IMS_PER_BATCH",
            str(batch),
            "TEST.AMP",
            mode,
            *small,
        )
        height, width = cfg.INPUT.SIZE_TEST
        # 4 triplets of each
        drawing = {"images_per_camera": 1, "height": height, "width": width, "seed": 0}
        pedestrians.write_data_set(Path(root) / pedestrians.FOLDER, 2, identities, **drawing)
        sides = Sides(cfg, FEW)
        splits = read_splits(cfg, ("query", "gallery"))
        data = make_test_data(cfg, splits["query"], splits["gallery"])
        seconds_by_side: dict[str, list[float]] = {}
        seconds = in_turns(
            "evaluation",
            {
                "reference": lambda: seconds_by_side.update(
                    reference=[
                        reference_evaluation(sides, data, number) for number in RETURN_PATTERNS
                    ]
                ),
                "ours": lambda: seconds_by_side.update(
                    ours=[
                        one.mAP
                        for case in evaluate_reid(cfg, sides.ours, data).values()
                        for one in case.values()
                    ]
                ),
            },
            1,
            sides.device,
        )
        if mode == "off":
            # Where rounding decides which of two images is nearer, an AP of three matches or more may differ by up to a sixth.
            check_near(
                "evaluation",
                torch.tensor(seconds_by_side["ours"]),
                torch.tensor(seconds_by_side["reference"]),
                0.17 / len(data.query),
            )
        half = "" if mode == "off" else f", both in {mode}"
        return speed_row(
            f"evaluation of an epoch, {len(data.samples)} triplets{half}", seconds, at_least=3
        )


def reference_evaluation(sides: Sides, data: TestData, pattern: int) -> float:
    """mAP of one return pattern, from a pass of its own."""
    batch_features = []
    with (
        torch.no_grad(),
        autocast(sides.device, choose_precision(sides.cfg.TEST.AMP, sides.device)),
    ):
        for images, _, cameras in batches(data.loader):
            images = {modality: image.to(sides.device) for modality, image in images.items()}
            batch_features.append(sides.reference.eval()(images, cameras.to(sides.device), pattern))
    features = F.normalize(torch.cat(batch_features).float(), dim=1).cpu()
    query, gallery = features[data.query], features[data.gallery]
    labels = [
        data.labels(name, side).numpy()
        for name in ("identity", "camera")
        for side in (data.query, data.gallery)
    ]
    return demo_ranking.evaluate_distances(torch.cdist(query, gallery).square().numpy(), *labels)[1]


def name_of(precision: torch.dtype | None) -> str:
    return str(precision or torch.float32).removeprefix("torch.")


class Fast(nn.Module):
    """HDM and ATMoE as the model has them, with a reference fusion's weights."""

    def __init__(self, reference: Fusion, width: int, heads: int):
        super().__init__()
        self.hdm, self.atmoe = HDM(width), ATMoE(width, heads)
        self.load_state_dict(
            from_demo(
                {f"generalFusion.{name}": weight for name, weight in reference.state_dict().items()}
            )
        )

    def forward(self, patches: ByModality, global_feats: ByModality) -> torch.Tensor:
        return self.atmoe(self.hdm(patches, global_feats))


def fusion_rows(quick: bool, device: torch.device) -> list[Row]:
    """HDM and ATMoE against seven attentions and a loop over the experts. Raises `RuntimeError` where the outputs differ."""
    cfg = load_cfg("RGBNT201/DeMo.yml")
    torch.manual_seed(cfg.SOLVER.SEED)
    batch, rounds = (2, 1) if quick else (64, 2)
    backbone = make_backbone(cfg, camera_num=1)  # only for its shapes
    width, count = backbone.width, backbone.num_patches
    reference = Fusion(width, cfg.MODEL.HEAD)
    modules = {
        "reference": reference.to(device),
        "ours": Fast(reference, width, cfg.MODEL.HEAD).to(device),
    }
    tokens = random_tokens(batch, count, width, device)
    check_near("HDM + ATMoE", fuse(modules["ours"], tokens), fuse(modules["reference"], tokens))
    title = f"HDM + ATMoE, {batch} triplets, {count} patches"
    training = in_turns(
        title,
        {name: partial(fusion_step, module, tokens) for name, module in modules.items()},
        rounds,
        device,
    )
    evaluation = in_turns(
        title,
        {name: partial(fuse, module, tokens) for name, module in modules.items()},
        2 * rounds,
        device,
    )
    return [
        speed_row(f"{title}: evaluation", evaluation, FUSION_TARGET),
        speed_row(f"{title}: training step", training, FUSION_TARGET),
    ]


def random_tokens(
    batch: int, count: int, width: int, device: torch.device
) -> tuple[ByModality, ByModality]:
    """Random patches (B, N, C), views of tokens that begin with a class token as from the backbone, and globals (B, C)."""
    return (
        {
            modality: torch.randn(batch, 1 + count, width, device=device)[:, 1:]
            for modality in MODALITIES
        },
        {modality: torch.randn(batch, width, device=device) for modality in MODALITIES},
    )


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
