"""The plug-in and `slim` on models of other code bases, each from its checkout, with random weights and without a GPU.

    PYTHONPATH=CHECKOUT python tests/helpers/hosts.py NAME OUT.json    writes what was measured
    PYTHONPATH=CHECKOUT python tests/helpers/hosts.py SCRIPT WORDS …    a script of the checkout, whose models are patched

NAME is one of HOSTS, or "ours": DeMo's features beside this project's. Of a host there are only the names that its own training
script calls. A process builds one, as the hosts' modules have common names. Neither CLIP's weights nor data are needed.
"""

import contextlib
import copy
import importlib.util
import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from tiny import ROOT
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import demo_sdtps
from benchmarks.timing import in_turns
from demo_sdtps.evaluation.operations import total_macs
from demo_sdtps.evaluation.protocol import extract_patterns
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.runtime.errors import UserError

sys.dont_write_bytecode = True  # checkouts stay as they are
PERSONS, BATCH = 171, 4  # RGBNT201
LABELS = {
    "label": torch.tensor([3, 3, 7, 7]),
    "cam_label": torch.arange(BATCH),
    "view_label": torch.zeros(BATCH, dtype=torch.long),
}
FILES = [f"00000{place}_cam1_0_00.jpg" for place in range(BATCH)]
SLIMMED = {"SLIM_BLOCKS": [2, 5], "SLIM_KEEP": [0.5, 0.5], "SLIM_SCORE": "saliency"}
ROUNDS = 3
FOLDER, FIGURES = os.environ.get("HOSTS", ""), os.environ.get("HOSTS_JSON", "")


# What stands in place of a GPU, of weights and of packages


def imitate():
    """A CPU answers in place of a GPU, random weights in place of files and of CLIP's."""
    for owner in (Tensor, nn.Module):
        owner.cuda = lambda self, *args, **kwargs: self
        owner.to = without_cuda(owner.to)
    torch.cuda.synchronize = lambda *args: None
    torch.jit.load = lambda *args, **kwargs: SimpleNamespace(
        eval=lambda: SimpleNamespace(state_dict=random_clip)
    )
    scan = {"selective_scan_fn": None, "selective_scan_ref": None}
    for name, attributes in {
        "cv2": {},
        "tutel": {"moe": SimpleNamespace(moe_layer=Experts)},
        "mamba_ssm.ops.selective_scan_interface": scan,
        # of setuptools below 82; EDITOR's wavelets name it
        "pkg_resources": {"resource_stream": None},
    }.items():
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            # a module in place of the one that is not there
            sys.modules[name] = MagicMock(name=name) if name == "cv2" else ModuleType(name)
            vars(sys.modules[name]).update(attributes)


def without_cuda(to):
    def move(self, *args, **kwargs):
        is_gpu = args and (type(args[0]) is int or str(args[0]).startswith("cuda"))
        return self if is_gpu else to(self, *args, **kwargs)

    return move


def random_clip():
    """The entries of CLIP's ViT-B/16 from which `build_model` reads sizes; it leaves the others at its own random start."""
    shapes = {
        "visual.conv1.weight": (768, 3, 16, 16),
        "visual.positional_embedding": (197, 768),
        "visual.proj": (768, 512),
        "positional_embedding": (77, 512),
        "token_embedding.weight": (49408, 512),
        "ln_final.weight": (512,),
        "text_projection": (512, 512),
    }
    for block in range(12):
        shapes[f"visual.transformer.resblocks.{block}.attn.in_proj_weight"] = (2304, 768)
        shapes[f"transformer.resblocks.{block}.attn.in_proj_weight"] = (1536, 512)
    return {name: 0.03 * torch.randn(shape) for name, shape in shapes.items()}


class Experts(nn.Module):
    """tutel's mixture: every token goes to the expert of its highest gate. There is no capacity, so no token is dropped."""

    def __init__(self, experts, model_dim, **options):
        super().__init__()
        self.gate = nn.Linear(model_dim, experts["count_per_node"])
        self.experts = experts["module"](
            model_dim, experts["count_per_node"], 1, experts["my_config"]
        )
        self.sharded_count, self.l_aux = 1, None

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        score, chosen = gates.max(-1)
        share = F.one_hot(chosen, gates.shape[-1]).to(x.dtype)
        balance = gates.flatten(0, -2).mean(0) * share.flatten(0, -2).mean(0)
        self.l_aux = gates.shape[-1] * balance.sum()
        return self.experts(x, self) * score[..., None]


# The models


class Run(NamedTuple):
    model: nn.Module
    cfg: Any
    images: dict[str, Tensor]  # by modality
    train: Callable[[nn.Module], Any]  # model → its output in training
    evaluate: Callable[[nn.Module, Any], Tensor]  # model, images → features


def configuration(name):
    """The host's configuration with its published file of this name."""
    source = importlib.import_module("config")
    source.cfg.merge_from_file(f"{Path(source.__file__).parents[1]}/configs/RGBNT201/{name}.yml")
    return source.cfg


def factory(module="modeling", name="make_model"):
    return getattr(importlib.import_module(module), name)


def run(cfg, make, views=1, training=None, evaluation=None, **inputs):
    """`make` is the factory. `inputs` are the forward's further arguments, `training` and `evaluation` those of one alone."""
    sizes = {"num_class": PERSONS, "camera_num": BATCH} | ({"view_num": views} if views else {})
    model = make(cfg, **sizes)
    images = {name: torch.randn(BATCH, 3, *cfg.INPUT.SIZE_TRAIN) for name in ("RGB", "NI", "TI")}
    unlabelled = {name: LABELS[name] for name in ("cam_label", "view_label")}

    def train(model):
        return model.train()(images, **inputs | LABELS | (training or {}))

    @torch.no_grad()
    def evaluate(model, images):
        return model.eval()(images, **inputs | unlabelled | (evaluation or {}))

    return Run(model, cfg, images, train, evaluate)


def signal():
    cfg = configuration("Signal")
    modes = {"training": {"training": True}, "evaluation": {"training": False}}
    return run(cfg, factory(name="make_frame"), sge=cfg.MODEL.stageName, **modes)


def from_imagenet():
    for name in ("vit_pytorch.Trans", "t2t.T2T_ViT"):
        module, _, owner = name.partition(".")
        if importlib.util.find_spec(f"modeling.backbones.{module}"):
            tower = getattr(importlib.import_module(f"modeling.backbones.{module}"), owner)
            tower.load_param = lambda self, path: None
    return factory()


def published(name, make=factory, views=1, **inputs):
    """The run of a host that is as it was published."""
    return lambda: run(configuration(name), make(), views, **inputs)


HOSTS = {
    "DeMo": ("924973292/DeMo b4f323a", published("DeMo", img_path=FILES)),
    "UGG-ReID": (
        "wanxixi11/UGG-ReID eaf1e8e",
        published("UGG", partial(factory, "modeling.make_model_ugg")),
    ),
    "MFRNet": ("stone96123/MFRNet ec54a13", published("MFRNet", img_path=FILES)),
    "TOP-ReID": ("924973292/TOP-ReID 921dd7c", published("TOP-ReID", from_imagenet)),
    "MambaPro": ("924973292/MambaPro 6dc4cb7", published("MambaPro", from_imagenet)),
    "Signal": ("010129/Signal 18a162d", signal),
    "MDReID": ("stone96123/MDReID f2026e8", published("MDReID", img_path=FILES)),
    "IDEA": ("924973292/IDEA 4e65520", published("IDEA")),
    "EDITOR": ("924973292/EDITOR 473cab6", published("EDITOR", from_imagenet, views=0)),
}
"""Repository and commit for which the plug-in was made, and how to run; no forward of those that refuse both methods."""


# DeMo beside this project's model

SMALL = [128, 64]
SIZES = [word for key in ("INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST") for word in (key, SMALL)]
OFF, ON = ["MODEL.HDM", False, "MODEL.ATM", False], ["MODEL.USE_SDTPS", True]
TOWER = ["MODEL.TRANSFORMER_TYPE", "vit_base_patch16_224"]
IMAGENET = [*TOWER, "MODEL.DIRECT", 0, "MODEL.GLOBAL_LOCAL", False]
MISSING = ["MODEL.ATM", False, "MODEL.STRIDE_SIZE", [12, 12], "TEST.MISS", "n"]
STAGES = ["MODEL.SLIM_BLOCKS", [4, 8], "MODEL.SLIM_KEEP", [0.5, 0.5]]
OWN = ["MODEL.SLIM_SHARED", False, "MODEL.SLIM_SCORE"]
CASES = {
    "CLIP": [*OFF, *ON],
    "CLIP, HDM, ATM": ON,
    "CLIP, HDM, overlapping patches, n missing": [*MISSING, *ON],
    "ImageNet, HDM, ATM, no PIFE, DIRECT 0": [*IMAGENET, *ON],
    "slimmed CLIP, HDM, ATM": STAGES,
    "slimmed CLIP, HDM, overlapping patches, n missing": [*MISSING, *STAGES],
    "slimmed ImageNet, own sets by saliency": [*IMAGENET, *STAGES, *OWN, "saliency"],
}


def theirs(make, checkout, opts):
    """A model of DeMo's by its configuration with our keys, the same for the same options; patched."""
    from config import cfg as defaults

    cfg = demo_sdtps.add_config(defaults.clone())
    cfg.merge_from_file(str(checkout / "configs" / "RGBNT201" / "DeMo.yml"))
    cfg.merge_from_list(opts)
    torch.manual_seed(0)
    model = make(cfg, PERSONS, BATCH)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("cv_embed"):
                parameter.normal_(std=0.02)
    return demo_sdtps.patch(model, cfg)


def compare_with_ours(folder):
    """DeMo's model and ours by each of CASES."""
    make, checkout = from_imagenet(), importlib.import_module("config").__path__[0]
    return {
        name: compare(make, Path(checkout).parent, folder, [*SIZES, *opts])
        for name, opts in CASES.items()
    }


def compare(make, checkout, folder, opts):
    """Largest relative differences of our features and of load_param's; shapes and gradients in training."""
    model = theirs(make, checkout, opts)
    torch.save(model.state_dict(), folder / "theirs.pth")
    ours_cfg = demo_sdtps.load_cfg("RGBNT201/DeMo.yml", [str(word) for word in opts])
    ours = demo_sdtps.make_model(ours_cfg, PERSONS, BATCH).eval()
    load_weights(ours, read_checkpoint(folder / "theirs.pth"))
    copy = theirs(make, checkout, opts)
    copy.load_param(str(folder / "theirs.pth"))
    comparison = dict.fromkeys(("ours", "copy"), 0.0)
    absent = missing_modalities(ours_cfg.TEST.MISS)
    for batch in (2, 3):
        torch.manual_seed(batch)
        images = {name: torch.randn(batch, 3, *SMALL) for name in ("RGB", "NI", "TI")}
        cameras = torch.arange(batch) % BATCH
        with torch.no_grad():
            (expected,) = extract_patterns(ours, images, cameras, [absent])
            for pattern in (1, 2, 3):
                words = {"cam_label": cameras, "return_pattern": pattern}
                feature, again = (each.eval()(images, **words) for each in (model, copy))
                for name, one, other in (
                    ("ours", feature, expected[pattern]),
                    ("copy", again, feature),
                ):
                    difference = float((one - other).norm() / other.norm())
                    comparison[name] = max(comparison[name], difference)
    output = model.train()(images, cam_label=cameras)
    sum(tensor.float().square().mean() for tensor in output if torch.is_tensor(tensor)).backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    shapes = [list(tensor.shape) for tensor in output[:2]]
    return comparison | {"pair": shapes, "finite": all(bool(g.isfinite().all()) for g in gradients)}


# What is measured


def seed():
    torch.manual_seed(3)


def features(run, model):
    seed()  # UGG-ReID draws noise in evaluation
    return run.evaluate(model, run.images)


class Evaluation(nn.Module):
    """The evaluation of a run's images, as a module for the count of operations."""

    def __init__(self, run, model):
        super().__init__()
        self.run, self.model = run, model

    def forward(self, images):
        return self.run.evaluate(self.model, images)


def patch(run, model, **keys):
    cfg = run.cfg.clone()
    cfg.merge_from_list([word for name, value in keys.items() for word in (f"MODEL.{name}", value)])
    return demo_sdtps.patch(model, cfg)


def with_slimming(run):
    """Differences, a training step, and what the model costs before and after; or the sentence that refuses token pruning."""
    model = copy.deepcopy(run.model)
    try:
        patch(run, model, **SLIMMED | {"SLIM_KEEP": [1.0, 1.0]})
    except UserError as error:
        return {"refused": str(error)}
    dense = features(run, run.model)
    figures = {"keep_all": difference(features(run, model), dense)}
    patch(run, demo_sdtps.unslim(model), **SLIMMED)
    figures["patches"] = list(model.slimming.counts(128))
    figures["slimmed"] = difference(features(run, model), dense)
    before = copy.deepcopy(model.state_dict())
    figures["training"] = step(run, model)
    model.load_state_dict(before)
    models = {"before": run.model, "after": model}
    calls = {what: partial(features, run, each) for what, each in models.items()}
    figures["images_per_second"] = {
        what: 3 * BATCH / seconds for what, seconds in in_turns("", calls, ROUNDS).items()
    }
    torch.backends.mha.set_fastpath_enabled(False)  # one operator that fvcore has no rule for
    figures["macs"] = {
        what: total_macs(Evaluation(run, each), (run.images,)) // BATCH
        for what, each in models.items()
    }
    torch.backends.mha.set_fastpath_enabled(True)
    return figures | {"unslimmed": difference(features(run, demo_sdtps.unslim(model)), dense)}


def with_sdtps(run):
    """The width of features before and after, and a training step; or the sentence that refuses SDTPS."""
    model = copy.deepcopy(run.model)
    try:
        patch(run, model, USE_SDTPS=True)
    except UserError as error:
        return {"refused": str(error)}
    return {
        "width": [features(run, each).shape[1] for each in (run.model, model)],
        "training": step(run, model),
        "gradient": float(model.classifier_sdtps.weight.grad.abs().max()),
    }


def step(run, model):
    """The backward pass of the mean squares of all tensors of a training forward: each of them reaches some weights."""
    seed()
    outputs = [each for each in tree_leaves(run.train(model)) if torch.is_tensor(each)]
    loss = sum(each.float().square().mean() for each in outputs if each.requires_grad)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    is_finite = all(bool(each.isfinite().all()) for each in (loss, *gradients))
    return {"loss": float(loss), "gradients": len(gradients), "finite": is_finite}


def difference(one, other):
    return float((one - other).abs().max())


def importing_from(checkout, folder):
    """The environment of a process that imports a checkout's modules, and this project's by links in `folder` alone."""
    for name in ("vit_slim", "demo_sdtps", "studies", "benchmarks", "tests"):
        (folder / name).symlink_to(ROOT / name)
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    others = [path for path in paths if path != str(ROOT)]
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), str(folder), *others])}


def measure(name):
    """The figures of a host, whose checkout PYTHONPATH begins with."""
    commit, make = HOSTS[name]
    run = make()
    demo_sdtps.add_config(run.cfg)
    return {"host": name, "commit": commit, **with_slimming(run), "sdtps": with_sdtps(run)}


def run_patched(script):
    """A script of the checkout, the models of which are patched by its configuration."""
    cfg = demo_sdtps.add_config(importlib.import_module("config").cfg)
    modeling = importlib.import_module("modeling")
    make = modeling.make_model
    modeling.make_model = lambda *args, **words: demo_sdtps.patch(make(*args, **words), cfg)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    del sys.argv[0]
    if sys.argv[0].endswith(".py"):
        imitate()
        run_patched(sys.argv[0])
    else:
        name, out = sys.argv
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        seed()
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            imitate()
            out = Path(out)
            figures = compare_with_ours(out.parent) if name == "ours" else measure(name)
            out.write_text(json.dumps(figures, indent=1))
