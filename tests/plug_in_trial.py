"""What a real DeMo checkout computes with SDTPS, beside this project's model: python plug_in_trial.py CHECKOUT FOLDER

Writes FOLDER/figures.json. Runs in a process of its own, as the checkout's modules have common names.
"""
import copy
import json
import sys
from pathlib import Path

import torch
from demo_on_cpu import prepare
from fvcore.nn import FlopCountAnalysis

import demo_sdtps
from demo_sdtps.modeling.checkpoint import load_weights, read_checkpoint
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.plug_in.fast import FastFusion

CLASSES, CAMERAS = 171, 4
SMALL = [128, 64]
SIZES = [word for key in ("INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST") for word in (key, SMALL)]
"""A quarter of DeMo's images: features are compared on them, operations are counted on whole ones."""
OFF = ["MODEL.HDM", False, "MODEL.ATM", False]
IMAGENET = ["MODEL.TRANSFORMER_TYPE", "vit_base_patch16_224", "MODEL.DIRECT", 0, "MODEL.GLOBAL_LOCAL", False]
SETTINGS = {
    "CLIP": OFF,
    "CLIP, HDM, ATM": [],
    "CLIP, HDM, overlapping patches, n missing": ["MODEL.ATM", False, "MODEL.STRIDE_SIZE", [12, 12], "TEST.MISS", "n"],
    "ImageNet, HDM, ATM, no PIFE, DIRECT 0": IMAGENET,
}

STAGES = ["MODEL.SLIM_BLOCKS", [4, 8], "MODEL.SLIM_KEEP", [0.5, 0.5]]
SLIMMED = {
    "CLIP, HDM, ATM": [],
    "CLIP, attention": [*OFF, "MODEL.SLIM_SCORE", "attention"],
    "CLIP, SDTPS's score, own sets, overlapping patches, n missing": [
        *OFF, "MODEL.SLIM_SCORE", "sdtps", "MODEL.SLIM_SHARED", False, "MODEL.STRIDE_SIZE", [12, 12], "TEST.MISS", "n"],
    "ImageNet, attention": [*IMAGENET, "MODEL.SLIM_SCORE", "attention"],
}
"""Cases of slimming without SDTPS: further keys."""


def main():
    checkout, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    prepare(checkout)
    empty = folder / "empty.pth"
    torch.save({}, empty)
    found = {name: compare(checkout, folder, ["MODEL.PRETRAIN_PATH_T", str(empty), *SIZES, *opts])
             for name, opts in SETTINGS.items()}
    found["slimmed"] = {name: slimmed(checkout, folder, ["MODEL.PRETRAIN_PATH_T", str(empty), *SIZES, *STAGES, *opts])
                        for name, opts in SLIMMED.items()}
    found["flops"] = flops(checkout, ["MODEL.PRETRAIN_PATH_T", str(empty), *OFF])
    (folder / "figures.json").write_text(json.dumps(found, indent=1))


def theirs(checkout, opts, is_on):
    """DeMo's configuration with our keys, and its model, the same for the same options; patched where `is_on`."""
    from config import cfg as defaults
    from modeling import make_model

    cfg = demo_sdtps.add_config(defaults.clone())
    cfg.merge_from_file(str(checkout / "configs" / "RGBNT201" / "DeMo.yml"))
    cfg.merge_from_list([*opts, "MODEL.USE_SDTPS", is_on])
    torch.manual_seed(0)
    model = make_model(cfg, CLASSES, CAMERAS)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("cv_embed"):
                parameter.normal_(std=0.02)
    return cfg, demo_sdtps.patch(model, cfg)


def images(batch, size):
    torch.manual_seed(batch)
    return {name: torch.randn(batch, 3, *size) for name in ("RGB", "NI", "TI")}, torch.arange(batch) % CAMERAS


def relative(one, other):
    return float((one - other).norm() / other.norm())


@torch.no_grad()
def compare(checkout, folder, opts):
    """Largest relative difference of our features by return pattern, and what else must be equal."""
    (_, plain), (cfg, model) = (theirs(checkout, opts, is_on) for is_on in (False, True))
    shared = plain.state_dict()
    found = {"same start": all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in shared.items()),
             "plain class": type(plain).__name__, "patched class": type(model).__name__}
    given, cameras = images(4, SMALL)
    found["training"] = [list(part.shape) for part in model.train()(given, cam_label=cameras) if isinstance(part, torch.Tensor)]
    plain.load_state_dict(model.state_dict(), strict=False)

    torch.save(model.state_dict(), folder / "DeMo.pth")
    again = theirs(checkout, opts, True)[1].eval()
    again.load_param(str(folder / "DeMo.pth"))
    ours_opts = [str(word) for word in opts[2:]]
    ours_cfg = demo_sdtps.load_cfg("RGBNT201/DeMo.yml", [*ours_opts, "MODEL.USE_SDTPS", "True"])
    ours = demo_sdtps.make_model(ours_cfg, CLASSES, CAMERAS).eval()
    load_weights(ours, read_checkpoint(folder / "DeMo.pth"))
    copied = copy.deepcopy(model).eval()
    model.eval(), plain.eval()
    fast = None
    if cfg.MODEL.HDM:
        fast = copy.deepcopy(model)
        FastFusion.replace(fast, cfg)
    for batch in (2, 3):
        given, cameras = images(batch, SMALL)
        (expected,) = ours.extract_features(given, cameras, [missing_modalities(ours_cfg.TEST.MISS)])
        for pattern in (1, 2, 3):
            feature = model(given, cam_label=cameras, return_pattern=pattern)
            key = f"pattern {pattern}"
            found[key] = max(found.get(key, 0), relative(feature, expected[pattern]))
            if fast:
                key = f"fast {pattern}"
                found[key] = max(found.get(key, 0), relative(fast(given, cam_label=cameras, return_pattern=pattern), feature))
        others = [other(given, cam_label=cameras) for other in (copied, again)]
        found["copies equal"] = found.get("copies equal", True) and all(torch.equal(feature, other) for other in others)
        original = plain(given, cam_label=cameras, return_pattern=1)
        width = original.shape[1]
        found["original equal"] = found.get("original equal", True) and torch.equal(original, feature[:, :width])
    return found


def slimmed(checkout, folder, opts):
    """Largest relative difference of a slimmed model's features to ours, and whether its gradients are finite."""
    model = theirs(checkout, opts, False)[1]
    given, cameras = images(4, SMALL)
    sum(part.float().square().mean() for part in model.train()(given, cam_label=cameras) if torch.is_tensor(part)).backward()
    finite = all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    torch.save(model.eval().state_dict(), folder / "slimmed.pth")
    ours_cfg = demo_sdtps.load_cfg("RGBNT201/DeMo.yml", [str(word) for word in opts])
    ours = demo_sdtps.make_model(ours_cfg, CLASSES, CAMERAS).eval()
    load_weights(ours, read_checkpoint(folder / "slimmed.pth"))
    with torch.no_grad():
        (expected,) = ours.extract_features(given, cameras, [missing_modalities(ours_cfg.TEST.MISS)])
        error = max(relative(model(given, cam_label=cameras, return_pattern=pattern), feature)
                    for pattern, feature in expected.items())
    return {"error": error, "finite gradients": bool(finite)}


def flops(checkout, opts):
    """Multiply-accumulates by DeMo's own flops(), without and with SDTPS and slimmed, and those of SDTPS alone."""
    found = {name: theirs(checkout, [*opts, *more], is_on)[1].flops()
             for name, more, is_on in (("plain", [], False), ("patched", [], True), ("slimmed", STAGES, False))}
    tokens, global_feats = [torch.randn(1, 128, 512)] * 3, [torch.randn(1, 512)] * 3
    module = theirs(checkout, opts, True)[1].sdtps.eval()
    return found | {"sdtps": FlopCountAnalysis(module, (*tokens, *global_feats)).unsupported_ops_warnings(False).total()}


if __name__ == "__main__":
    main()
