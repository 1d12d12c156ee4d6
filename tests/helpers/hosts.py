"""What the plug-in does to the model of one code base, measured on its checkout, with random weights on a CPU.

    PYTHONPATH=CHECKOUT python tests/helpers/hosts.py CHECKOUT NAME OUT.json

NAME is one of host_models.HOSTS, or of slim_hosts.HOSTS, which need no plug-in. Accuracy needs CLIP's weights and the data;
this needs neither.
"""

import contextlib
import copy
import json
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import host_imitation
import host_models
import numpy as np
import slim_hosts
import torch
from tiny import ROOT
from torch import nn

import demo_sdtps
from benchmarks.timing import in_turns
from demo_sdtps.evaluation.operations import total_macs
from demo_sdtps.runtime.errors import UserError
from vit_slim.api import find_slimming

COMMITS = {
    "DeMo": "924973292/DeMo b4f323a",
    "UGG-ReID": "wanxixi11/UGG-ReID eaf1e8e",
    "Signal": "010129/Signal 18a162d",
    "MFRNet": "stone96123/MFRNet ec54a13",
    "MDReID": "stone96123/MDReID f2026e8",
    "IDEA": "924973292/IDEA 4e65520",
    "STMI": "young6man/STMI 27a74bb",
    "TOP-ReID": "924973292/TOP-ReID 921dd7c",
    "MambaPro": "924973292/MambaPro 6dc4cb7",
    "HAPE": "xiaozhou-alt/HAPE e8d505c",
    "UPCL": "ZhouZhongao/UPCL c2c01c2",
    "EDITOR": "924973292/EDITOR 473cab6",
}
"""Repository and commit for which the plug-in was made."""
SLIMMED = {"SLIM_BLOCKS": [2, 5], "SLIM_KEEP": [0.5, 0.5], "SLIM_SCORE": "saliency"}
IMAGES_PER_TRIPLET, ROUNDS = 3, 3
FOLDER, FIGURES = os.environ.get("HOSTS", ""), os.environ.get("HOSTS_JSON", "")


class Evaluation(nn.Module):
    """A model's evaluation of images, as a module for the count of operations."""

    def __init__(self, run, model):
        super().__init__()
        self.evaluate, self.model = run.evaluate, model

    def forward(self, images):
        return self.evaluate(self.model, images)


def main():
    checkout, name, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seed()
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        host_imitation.imitate()
        if name in slim_hosts.HOSTS:
            figures = with_slimming(
                slim_hosts.HOSTS[name](),
                lambda model, keep: demo_sdtps.slim(model, (0, 4), keep),
                1,
            )
        else:
            run = host_models.HOSTS[name](checkout)
            demo_sdtps.add_config(run.cfg)
            figures = {
                "host": name,
                "commit": COMMITS[name],
                **with_slimming(run, partial(patch_slim, run)),
                "sdtps": with_sdtps(run),
            }
    Path(out).write_text(json.dumps(figures, indent=1))


def seed():
    torch.manual_seed(3)
    np.random.seed(3)  # STMI draws from it


def features(run, model):
    seed()  # UGG-ReID draws noise in evaluation
    return run.evaluate(model, run.images)


def patch(run, model, **keys):
    cfg = run.cfg.clone()
    cfg.merge_from_list([word for name, value in keys.items() for word in (f"MODEL.{name}", value)])
    return demo_sdtps.patch(model, cfg)


def patch_slim(run, model, keep):
    patch(run, model, **SLIMMED | {"SLIM_KEEP": keep})


def with_slimming(run, slim, images=IMAGES_PER_TRIPLET):
    """Differences, the training step, and what the model costs before and after; or the sentence that refuses slimming."""
    dense = features(run, run.model)
    model = copy.deepcopy(run.model)
    try:
        slim(model, [1.0, 1.0])
    except UserError as error:
        return {"refused": str(error)}
    figures = {"keep_all": difference(features(run, model), dense)}
    slim(demo_sdtps.unslim(model), [0.5, 0.5])
    figures["patches"] = list(find_slimming(model).counts(128))
    figures["slimmed"] = difference(features(run, model), dense)
    before = copy.deepcopy(model.state_dict())
    figures["training"] = step(run, model)
    model.load_state_dict(before)
    models = {"before": run.model, "after": model}
    figures["images_per_second"] = {
        what: images * host_models.BATCH / seconds
        for what, seconds in in_turns(
            "",
            {what: lambda model=each: features(run, model) for what, each in models.items()},
            ROUNDS,
        ).items()
    }
    torch.backends.mha.set_fastpath_enabled(False)  # one operator that fvcore has no rule for
    figures["macs"] = {
        what: total_macs(Evaluation(run, each), (run.images,)) // host_models.BATCH
        for what, each in models.items()
    }
    torch.backends.mha.set_fastpath_enabled(True)
    return figures | {"unslimmed": difference(features(run, demo_sdtps.unslim(model)), dense)}


def with_sdtps(run):
    model = copy.deepcopy(run.model)
    width = features(run, model).shape[1]
    try:
        patch(run, model, USE_SDTPS=True)
    except UserError as error:
        return {"refused": str(error)}
    return {
        "width": [width, features(run, model).shape[1]],
        "training": step(run, model),
        "gradient": float(model.classifier_sdtps.weight.grad.abs().max()),
    }


def step(run, model):
    seed()
    loss = run.train(model)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return {
        "loss": float(loss),
        "gradients": len(gradients),
        "finite": bool(loss.isfinite().all())
        and all(bool(gradient.isfinite().all()) for gradient in gradients),
    }


def difference(one, other):
    return float((one - other).abs().max())


def importing_from(checkout, folder):
    """The environment of a process that imports the modules of a checkout, and this project's by links in `folder`: beside
    these themselves are others of the hosts' names."""
    for name in ("demo_sdtps", "studies", "benchmarks", "tests"):
        (folder / name).symlink_to(ROOT / name)
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    others = [path for path in paths if path != str(ROOT)]
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), str(folder), *others])}


if __name__ == "__main__":
    main()
