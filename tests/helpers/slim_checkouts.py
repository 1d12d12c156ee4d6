"""What `demo_sdtps.slim` does to the model of a code base of one modality, on its checkout, with random weights on a CPU.

    PYTHONPATH=CHECKOUT python tests/helpers/slim_checkouts.py NAME OUT.json

NAME is one of MODELS. A process builds one: the code bases' modules have common names.
"""

import contextlib
import copy
import json
import os
import sys
import warnings
from collections import abc
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import host_models
import torch
from hosts import ROUNDS, Evaluation, difference

import demo_sdtps
from demo_sdtps.evaluation.operations import total_macs
from demo_sdtps.training.timing import in_turns, infer

SIZE, TIMED = (256, 128), ("dense", "half")


def clip_reid():
    make = import_module("model.make_model_clipreid")
    clip = import_module("model.clip.model")
    make.load_clip_to_cpu = lambda name, rows, columns, stride: clip.CLIP(
        512, 224, 12, 768, 16, stride, 77, 49408, 512, 8, 12, rows, columns
    )
    cfg = import_module(
        "config"
    ).cfg  # its file for persons has an empty section, which yacs refuses
    cfg.merge_from_list(
        ["MODEL.NAME", "ViT-B-16", "INPUT.SIZE_TRAIN", SIZE, "DATASETS.NAMES", "market1501"]
    )
    cfg.MODEL.STRIDE_SIZE = [16, 16]
    return make.make_model(cfg, 751, 6, 1), {}


def trans_reid(file, **labels):
    host_models.stub("torch._six", container_abcs=abc)
    cfg = host_models.configuration(file, ["MODEL.PRETRAIN_CHOICE", "no"])
    return host_models.factory("model")(cfg, 751, 6, 1), labels


MODELS = {
    "CLIP-ReID": clip_reid,
    "TransReID": lambda: trans_reid("Market/vit_base.yml"),
    "TransReID, JPM, SIE, stride 12": lambda: trans_reid(
        "Market/vit_transreid_stride.yml", cam_label=0
    ),
}


def main():
    name, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        host_models.imitate()
        model, labels = MODELS[name]()
        Path(out).write_text(json.dumps(figures(model.eval(), labels)))


def figures(dense, labels):
    run = SimpleNamespace(evaluate=lambda model, images: model(images, **labels))
    images = torch.randn(8, 3, *SIZE)
    models = {
        "dense": dense,
        "all": demo_sdtps.slim(copy.deepcopy(dense), keep=(1.0, 1.0)),
        "half": demo_sdtps.slim(copy.deepcopy(dense), keep=(0.5, 0.5)),
    }
    hosts = {name: Evaluation(run, model).eval() for name, model in models.items()}
    timed = {name: partial(infer, hosts[name], images) for name in TIMED}
    seconds = in_turns("", timed, ROUNDS)
    with torch.no_grad():
        outputs = {name: host(images) for name, host in hosts.items()}
        demo_sdtps.unslim(models["all"])
        unslimmed = hosts["all"](images)
    torch.backends.mha.set_fastpath_enabled(False)  # one operator that fvcore has no rule for
    macs = [total_macs(hosts[name], (images[:1],)) for name in TIMED]
    scores, features, *_ = models["half"].train()(images, **labels)
    sum(value.square().sum() for value in (*scores, *features)).backward()
    gradients = [weight.grad for weight in models["half"].parameters() if weight.grad is not None]
    return {
        "keep_all": difference(outputs["all"], outputs["dense"]),
        "slimmed": difference(outputs["half"], outputs["dense"]),
        "unslimmed": difference(unslimmed, outputs["dense"]),
        "finite": all(bool(gradient.isfinite().all()) for gradient in gradients),
        "images_per_second": [len(images) / seconds[name] for name in TIMED],
        "macs": macs,
    }


if __name__ == "__main__":
    main()
