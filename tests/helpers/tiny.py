"""Small models and inputs, quick enough for a CPU, how far roundings go in them, and how clear their choices of patches are."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import count, product
from pathlib import Path
from unittest import mock

import torch
from numeric import assert_close, generator, shift_seed, tolerance

from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.evaluation.protocol import encode_cases
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.demo import make_model
from vit_slim import stage

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
CLIP_CONFIG = ROOT / "configs" / "RGBNT201" / "Baseline.yml"

SIZE = (64, 32)
WIDTH = 64
PATCHES = 32
"""Of 8×8 pixels. SDTPS keeps 16 of them and aggregates those to 6."""
CLASSES, CAMERAS = 5, 4

UNSIZED = ("INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST")


def equal(tensors, others):
    """Whether sequences of tensors, or those of a mapping and of the same names in another, are equal to the last bit."""
    if isinstance(tensors, dict):
        tensors, others = tensors.values(), [others[name] for name in tensors]
    return all(map(torch.equal, tensors, others)) and len(tensors) == len(others)


def make_replicas(model, count):
    """Replicas as nn.DataParallel makes them on GPUs: the modules' shallow copies, which share hooks, with own weights."""
    modules = list(model.modules())
    index = {module: place for place, module in enumerate(modules)}
    replicas = []
    for _ in range(count):
        copies = [module._replicate_for_data_parallel() for module in modules]
        for module, replica in zip(modules, copies, strict=True):
            for name, child in module._modules.items():
                setattr(replica, name, copies[index[child]])
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                setattr(replica, name, None if tensor is None else tensor.detach().clone())
        replicas.append(copies[0])
    return replicas


def sums_of_a_block(width, heads, tokens):
    """Lengths of the sums in a block (numeric.py): norm, queries, products, softmax, means, projection, norm and the MLP."""
    return width, width, width // heads, tokens, tokens, width, width, width, 4 * width


def sums_of_a_backbone(width, heads, tokens, depth, patch):
    """… from images to tokens: patches, blocks and the last norm."""
    return 3 * patch**2, *depth * sums_of_a_block(width, heads, tokens), width


BLOCK = sums_of_a_block(WIDTH, 2, 1 + PATCHES)
ENCODER = sums_of_a_backbone(WIDTH, 2, 1 + PATCHES, 6, 8)
PIFE = (PATCHES, 2 * WIDTH, 2 * WIDTH)
SCORE = (WIDTH, WIDTH, WIDTH // 4)
"""Of SDTPS: norm, cosine or first product of the MLP, second product."""
SDTPS = (*SCORE, PATCHES, PATCHES, WIDTH, WIDTH, WIDTH // 5, PATCHES, PATCHES)


def sums_of_the_fusion(width, tokens):
    """… of HDM, for as many tokens of a modality, and ATMoE."""
    return *4 * (width,), *2 * (3 * tokens,), width, width, 7 * width, *4 * (width,), 7


MODEL = (*ENCODER, *PIFE, *SDTPS, *sums_of_the_fusion(WIDTH, PATCHES))
"""Lengths of the sums from images to any feature."""
SHALLOW = (*sums_of_a_backbone(WIDTH, 2, 1 + PATCHES, 2, 8), *MODEL[len(ENCODER) :])
"""… of a model of two blocks, as the fixture `shallow` makes them."""


def tiny_cfg(*opts):
    """The synthetic configuration on images of SIZE; `opts` are KEY, VALUE, …"""
    opts = [str(value) for value in opts]
    sizes = [word for key in UNSIZED if key not in opts for word in (key, str(list(SIZE)))]
    return load_cfg(CONFIG, [*sizes, *opts])


def tiny_model(*opts, seed=0, cameras=CAMERAS):
    """A randomly initialised model of `tiny_cfg`; the same seed and options give the same weights."""
    torch.manual_seed(shift_seed(seed))
    return make_model(tiny_cfg(*opts), CLASSES, cameras)


@lru_cache(maxsize=1)
def clip_model():
    """The model with CLIP's backbone and PIFE, built once; whoever changes it puts it back."""
    torch.manual_seed(shift_seed())
    return make_model(load_cfg(CLIP_CONFIG), CLASSES, CAMERAS)


def random_images(seed, batch=4, size=SIZE):
    """Random triplets {modality: (B, 3, H, W)} and their cameras (B,)."""
    draws = generator(seed)
    images = {modality: torch.randn(batch, 3, *size, generator=draws) for modality in MODALITIES}
    return images, torch.arange(batch) % CAMERAS


def exact(module, images=None):
    """A copy of a module in float64, of a model all but its heads, and of images; SDTPS and the losses stay in float32."""
    module = copy.deepcopy(module).double()
    if hasattr(module, "heads"):
        module.heads.float()
    if images is None:
        return module
    return module, {modality: image.double() for modality, image in images.items()}


@torch.no_grad()
def clear(draw, cases=(frozenset(),)):
    """`draw(attempt)` → (model, images, cameras), of the first attempt in which SDTPS chooses no patch by roundings, which
    change a score by as much more as the cosines of the patches lie closer together than from 0 to 1."""
    for attempt in count():
        model, images, cameras = draw(attempt)
        needed, actual = 0.0, [torch.inf]
        for encoded in encode_cases(model, images, cameras, cases) if model.sdtps else ():
            with margins() as of_case:
                model.select_patches(encoded)
            actual += of_case
            for tokens, guide in product(encoded.tokens.values(), encoded.global_feats.values()):
                cosines = torch.cosine_similarity(tokens, guide.unsqueeze(1), dim=2)
                spread = float((cosines.amax(dim=1) - cosines.amin(dim=1)).min())
                needed = max(needed, tolerance(*ENCODER, *PIFE, *SCORE) / spread)
        if min(actual) > needed:
            return model, images, cameras


@contextmanager
def measure_amplification(module) -> Iterator[list[float]]:
    """How many times as large each BatchNorm of a training forward makes roundings: largest value over least deviation."""
    actual = []

    def measure(_, inputs):
        values = inputs[0].detach()
        actual.append(float(values.abs().max() / values.std(dim=0, correction=0).min()))

    norms = [each for each in module.modules() if isinstance(each, torch.nn.BatchNorm1d)]
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    yield actual
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def assert_logits(logits, head, features):
    """Those of a head in training for features (B, D) that it was given: BatchNorm by the batch's statistics, and a product."""
    features, weight = features.double(), head.classifier.weight.double().T
    scale = head.bottleneck.weight.double() / (features.var(dim=0, correction=0) + 1e-5).sqrt()
    largest = float((features.abs() * scale.abs() @ weight.abs()).max())
    normed = (features - features.mean(dim=0)) * scale + head.bottleneck.bias
    assert_close(logits, normed @ weight, *2 * features.shape, scale=largest)


def pairs(output):
    """[logits, features, logits, features, …] of a training forward, head by head."""
    return [
        tensor
        for name, logits in output.logits.items()
        for tensor in (logits, output.features[name])
    ]


@contextmanager
def margins():
    """By how much, in each selection of this block, the last score that is kept exceeds the first that is dropped, relative to
    the largest absolute one: a list. Between scores that differ by roundings alone any of two patches may be chosen."""
    choices, best = [], sdtps.best

    def noting(score, keep):
        ordered = score.detach().double().sort(dim=-1, descending=True).values
        if keep < ordered.shape[-1]:
            gaps = (ordered[..., keep - 1] - ordered[..., keep]) / ordered.abs().max()
            choices.extend(gaps.flatten().tolist())
        return best(score, keep)

    with ExitStack() as changes:
        for module in (sdtps, stage):
            changes.enter_context(mock.patch.object(module, "best", noting))
        yield choices


REGISTERS, EVA02 = "vit_small_patch14_reg4_dinov2", "eva02_tiny_patch14_224"
DINOV3, MIXED = "vit_tiny_patch16_dinov3_qkvb", "vit_small_patch16_rope_mixed_ape_224"
"""timm's, with registers, and with rotary positions, which are learned for every block in the last."""


def patch_side(name):
    return 14 if "patch14" in name else 16


def backbone_cfg(name, *opts, stride=None):
    """Images of 3 rows and 2 columns of patches that do not overlap."""
    side = patch_side(name)
    keys = {
        "MODEL.TRANSFORMER_TYPE": name,
        "MODEL.PATCH_SIZE": 0,
        "MODEL.STRIDE_SIZE": list(stride or (side, side)),
        "MODEL.DROP_PATH": 0,
        **{key: [3 * side, 2 * side] for key in UNSIZED},
    }
    return load_cfg(CONFIG, [*(str(word) for pair in keys.items() for word in pair), *opts])


def disturb(module):
    """Make all parameters random: layer scales, registers and biases start near 0 and would hide a mistake."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module
