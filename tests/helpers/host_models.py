"""The models of the code bases that the plug-in knows, each from its checkout, with random weights and without a GPU.

    python host_models.py SCRIPT WORDS …    a script of the checkout that PYTHONPATH begins with, whose models are patched

Nothing of a host is here but the names that its own training script calls, and what its loop does with the outputs. A process
builds one: the hosts' modules have common names.
"""

import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from host_imitation import imitate, random_clip, stub
from torch import Tensor, nn

import demo_sdtps

sys.dont_write_bytecode = True  # checkouts stay as they are
PERSONS, VEHICLES, BATCH = 171, 50, 4  # RGBNT201
# the triplet loss needs two images of each of two people
IDENTITIES, CAMERAS = (torch.tensor([3, 3, 7, 7]), torch.arange(BATCH))
LABELS = {
    "label": IDENTITIES,
    "cam_label": CAMERAS,
    "view_label": torch.zeros(BATCH, dtype=torch.long),
}
UNLABELLED = {name: LABELS[name] for name in ("cam_label", "view_label")}
FILES = [f"00000{place}_cam1_0_00.jpg" for place in range(BATCH)]


class Run(NamedTuple):
    model: nn.Module
    cfg: Any
    images: dict[str, Tensor]
    # model → the loss of a step, as the host's loop adds it up
    train: Callable[[nn.Module], Tensor]
    evaluate: Callable[[nn.Module, dict], Tensor]  # model, images → features


# What the hosts share


def configuration(file, opts=(), module="config", name="cfg"):
    """The host's configuration with one of its published files, a path below its configs/."""
    source = importlib.import_module(module)
    cfg = getattr(source, name)
    cfg.merge_from_file(str(Path(source.__file__).parents[1] / "configs" / file))
    cfg.merge_from_list(list(opts))
    return cfg


def factory(module="modeling", name="make_model"):
    return getattr(importlib.import_module(module), name)


def pairs(output, loss_fn):
    """The sum over (logits, feature), (logits, feature), …, to which an odd last element does not belong."""
    return sum(
        loss_fn(score=score, feat=feature, target=IDENTITIES, target_cam=CAMERAS)
        for score, feature in zip(output[::2], output[1::2], strict=False)
    )


def tail(factor=1.0):
    """The loop of most: the pairs, and a loss of the model's own where the number is odd."""
    return lambda model, output, loss_fn: (
        pairs(output, loss_fn) + (factor * output[-1] if len(output) % 2 else 0)
    )


def run(
    cfg,
    make,
    loss=None,
    features=None,
    images=("RGB", "NI", "TI"),
    classes=PERSONS,
    named=False,
    views=1,
    **inputs,
):
    """`make` is the factory. `loss(model, output, loss_fn)` is of a training forward, `features(output)` are of one in
    evaluation; `inputs` are the forward's further arguments, "training" and "evaluation" those of one alone."""
    from layers.make_loss import make_loss

    model = make(cfg, num_class=classes, camera_num=BATCH, **({"view_num": views} if views else {}))
    loss_fn = make_loss(cfg, num_classes=classes)
    loss_fn = loss_fn[0] if isinstance(loss_fn, tuple) else loss_fn
    training, evaluation = inputs.pop("training", {}), inputs.pop("evaluation", {})
    batch = {name: torch.randn(BATCH, 3, *cfg.INPUT.SIZE_TRAIN) for name in images}

    def call(model, tensors, labels):
        return (
            model(image=tensors, **inputs, **labels)
            if named
            else model(tensors, **inputs, **labels)
        )

    def train(model):
        return (loss or tail())(model, call(model.train(), batch, LABELS | training), loss_fn)

    @torch.no_grad()
    def evaluate(model, images):
        output = call(model.eval(), images, UNLABELLED | evaluation)
        return features(output) if features else output

    return Run(model, cfg, batch, train, evaluate)


def texts(tokenize, begin):
    return {
        f"{modality}_text": tokenize(
            [f"{begin} {spectrum} spectrum: someone with {i} bags" for i in range(BATCH)]
        )
        for modality, spectrum in {
            "rgb": "visible",
            "ni": "near infrared",
            "ti": "thermal infrared",
        }.items()
    }


# The hosts


def signal(checkout):
    cfg = configuration("RGBNT201/Signal.yml")
    factors = [cfg.MODEL.Gram_Loss_weight, cfg.MODEL.PAT_Loss_weight][
        : 1 if cfg.MODEL.stageName == "CLS" else 2
    ]

    def loss(model, output, loss_fn):
        sign, *output = output
        end = len(output) - (len(factors) if sign == 3 else 0)
        return pairs(output[:end], loss_fn) + sum(
            f * term for f, term in zip(factors, output[end:], strict=False)
        )

    return run(
        cfg,
        factory(name="make_frame"),
        loss,
        sge=cfg.MODEL.stageName,
        training={"training": True},
        evaluation={"training": False},
    )


def mdreid(checkout):
    cfg, loop = configuration("RGBNT201/MDReID.yml"), ModuleType("processor")
    # The published loop is not valid UTF-8, hence not valid Python: its comments are GBK.
    exec(Path(checkout, "engine", "processor.py").read_text("gbk"), vars(loop))
    from layers.triplet_loss import EnhancedTripletLoss

    def loss(model, output, loss_fn):
        if cfg.MODEL.DIRECT:
            value = loop.cal_loss(loss_fn, output, IDENTITIES, CAMERAS)
            specific, shared = output[1].chunk(2, 1) if cfg.MODEL.ADD_SHARE else (output[1], None)
        else:
            value = loop.cal_loss(loss_fn, output[:8], IDENTITIES, CAMERAS, 6)
            specific, shared = (
                torch.cat(output[1:6:2], -1),
                output[7] if cfg.MODEL.ADD_SHARE else None,
            )
        if cfg.MODEL.ADD_CLOSS:
            six = torch.stack([*specific.chunk(3, 1), *shared.chunk(3, 1)], 1)
            value = value + 1.5 * loop.orthonomal_loss(loop.CoRefine(six, six)) / len(six)
        if cfg.MODEL.ADD_ELOSS:
            joint = torch.cat(output[9:14:2], -1)
            value = value + 5.25 * EnhancedTripletLoss(cfg.SOLVER.MARGIN)(
                joint, specific, shared, IDENTITIES
            )
        return value

    return run(cfg, factory(), loss, img_path=FILES)


def idea(checkout):
    """With MODEL.INVERSE, as published. The learnt prompts stand on the X, which must be tokens 5 and on."""
    cfg = configuration("RGBNT201/IDEA.yml")
    text = texts(
        factory("modeling.clip.clip", "tokenize"),
        "An image of a " + "X " * cfg.MODEL.TEXT_PROMPT + "person in the",
    )
    names = ("V_RGB", "V_NIR", "V_TIR", "T_RGB", "T_NIR", "T_TIR", "LOCAL")
    return run(
        cfg,
        factory(),
        features=lambda output: torch.cat([output[name] for name in names], -1),
        named=True,
        text=text,
        img_path=FILES,
        training={"writer": None, "epoch": 1},
    )


def stmi(checkout):
    """The mask has a number in float64 for each patch, 1 where at least half of its pixels show the person."""
    host_run = run(
        configuration("RGBNT201/STMI.yml"),
        factory(),
        features=lambda output: output["LOCAL"],
        named=True,
        text=texts(factory("modeling.clip.clip", "tokenize"), "a person in the"),
    )
    mask = torch.zeros(BATCH, 16, 8, dtype=torch.float64)
    mask[:, 2:14, 2:6] = 1
    host_run.images["mask"] = mask
    return host_run


def from_imagenet():
    for name in ("vit_pytorch.Trans", "t2t.T2T_ViT"):
        module, _, owner = name.partition(".")
        if importlib.util.find_spec(f"modeling.backbones.{module}"):
            getattr(importlib.import_module(f"modeling.backbones.{module}"), owner).load_param = (
                lambda self, path: None
            )
    return factory()


def hape(checkout):
    """Published without config/__init__.py and modeling/__init__.py, and with a layer 6 from which no forward runs, as the mean
    over all layers is of None for those before."""
    return run(
        configuration("RGBNT201/HAPE.yml", ["MODEL.CPE_START_LAYER", 0], "config.defaults", "_C"),
        factory("modeling.make_model"),
    )


def upcl(checkout):
    """Modules that are missing as published get stubs; of what is imported from them, two functions alone are called."""
    vits = dict.fromkeys(
        ["vit_base_patch16_224", "vit_small_patch16_224", "deit_small_patch16_224"]
    )
    stub("modeling.backbones.vit_pytorch", **vits, trunc_normal_=nn.init.trunc_normal_)
    stub("modeling.backbones.t2t", t2t_vit_t_14=None, t2t_vit_t_24=None)
    stub("modeling.backbones.basic_cnn_params.flops", give_supported_ops=None)
    stub("modeling.moe.AttnMOE", GeneralFusion=None, QuickGELU=None)
    stub(
        "modeling.make_model_clipreid",
        load_clip_to_cpu=lambda cfg, name, *sizes: factory("modeling.clip.clip", "build_model")(
            cfg, random_clip(), *sizes
        ),
    )
    from layers.itc_loss import compute_itc
    from utils.finch import FINCH, cluster_proto

    cfg = configuration("UNIRNT/Cluster_Unbiased_cross_finch.yml")
    keys, kinds = cfg.MODEL, (range(PERSONS), range(PERSONS, PERSONS + VEHICLES))

    def prototypes(memory, kind):
        features = memory.features[list(kind)].numpy()
        return torch.stack(
            cluster_proto(FINCH(features, distance="cosine", verbose=False)[0], features)
        ).mean(0)

    def loss(model, output, loss_fn):
        output, (feature, logits) = output
        rgb, nir, tir = features = output[1:6:2]
        # The host's loop gives the features as the scores and the scores as the features.
        total = pairs(output, loss_fn) + loss_fn(
            score=feature, feat=logits, target=IDENTITIES.repeat(4), target_cam=CAMERAS.repeat(4)
        )
        total = total + sum(
            memory(feature, IDENTITIES)
            for memory, feature in zip(
                (model.memory_RGB, model.memory_NI, model.memory_TI), features, strict=True
            )
        )
        total = total + keys.CROSS_COE * sum(
            compute_itc(*two, keys.TEMP) for two in ((rgb, nir), (rgb, tir), (nir, tir))
        )
        total = total + keys.UNBIASED_COE * model.memory_unbiased((rgb + nir + tir) / 3, IDENTITIES)
        target = torch.cat([prototypes(model.memory_unbiased, kind) for kind in kinds])[
            LABELS["view_label"]
        ]
        return total + keys.FINCH_COE * sum(F.mse_loss(feature, target) for feature in features)

    host_run = run(
        cfg,
        factory(),
        loss,
        lambda output: output[3],
        ("RGB", "RGB1", "NI", "TI"),
        PERSONS + VEHICLES,
        views=2,
    )
    for name, memory in host_run.model.named_children():
        if name.startswith("memory"):  # before the first epoch: the mean feature of each identity
            memory.features = F.normalize(torch.randn_like(memory.features), dim=1)
    return host_run


def editor(checkout):
    return run(
        configuration("RGBNT201/EDITOR.yml"),
        from_imagenet(),
        views=0,
        img_path=FILES,
        training={"writer": SimpleNamespace(add_scalar=lambda *args: None), "epoch": 1},
    )


HOSTS = {
    "DeMo": lambda checkout: run(configuration("RGBNT201/DeMo.yml"), factory(), img_path=FILES),
    "UGG-ReID": lambda checkout: run(
        configuration("RGBNT201/UGG.yml"), factory("modeling.make_model_ugg"), tail(0.1)
    ),
    "MFRNet": lambda checkout: run(configuration("RGBNT201/MFRNet.yml"), factory(), img_path=FILES),
    "TOP-ReID": lambda checkout: run(configuration("RGBNT201/TOP-ReID.yml"), from_imagenet()),
    "MambaPro": lambda checkout: run(configuration("RGBNT201/MambaPro.yml"), from_imagenet()),
    "Signal": signal,
    "MDReID": mdreid,
    "IDEA": idea,
    "STMI": stmi,
    "HAPE": hape,
    "UPCL": upcl,
    "EDITOR": editor,
}

if __name__ == "__main__":
    imitate()
    cfg = demo_sdtps.add_config(importlib.import_module("config").cfg)
    modeling = importlib.import_module("modeling")
    make_model = modeling.make_model
    modeling.make_model = lambda *arguments, **words: demo_sdtps.patch(
        make_model(*arguments, **words), cfg
    )
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
