"""What a checkout of DeMo computes by the plug-in, beside this project's model: python host_demo.py CHECKOUT FOLDER

Writes FOLDER/figures.json. Runs in a process of its own, as the checkout's modules have common names.
"""

import json
import sys
from pathlib import Path

import torch
from hosts import from_imagenet, imitate

import demo_sdtps
from demo_sdtps.evaluation.protocol import extract_patterns
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.demo import missing_modalities

CLASSES, CAMERAS, SMALL = 171, 4, [128, 64]
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


def main():
    checkout, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    imitate()
    make = from_imagenet()
    comparison = {
        name: compare(make, checkout, folder, [*SIZES, *opts]) for name, opts in CASES.items()
    }
    (folder / "figures.json").write_text(json.dumps(comparison, indent=1))


def theirs(make, checkout, opts):
    """A model of DeMo's by its configuration with our keys, the same for the same options; patched."""
    from config import cfg as defaults

    cfg = demo_sdtps.add_config(defaults.clone())
    cfg.merge_from_file(str(checkout / "configs" / "RGBNT201" / "DeMo.yml"))
    cfg.merge_from_list(opts)
    torch.manual_seed(0)
    model = make(cfg, CLASSES, CAMERAS)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("cv_embed"):
                parameter.normal_(std=0.02)
    return demo_sdtps.patch(model, cfg)


def compare(make, checkout, folder, opts):
    """Largest relative differences of our features and of load_param's; shapes and gradients in training."""
    model = theirs(make, checkout, opts)
    torch.save(model.state_dict(), folder / "theirs.pth")
    ours_cfg = demo_sdtps.load_cfg("RGBNT201/DeMo.yml", [str(word) for word in opts])
    ours = demo_sdtps.make_model(ours_cfg, CLASSES, CAMERAS).eval()
    load_weights(ours, read_checkpoint(folder / "theirs.pth"))
    copy = theirs(make, checkout, opts)
    copy.load_param(str(folder / "theirs.pth"))
    comparison = dict.fromkeys(("ours", "copy"), 0.0)
    absent = missing_modalities(ours_cfg.TEST.MISS)
    for batch in (2, 3):
        torch.manual_seed(batch)
        images = {name: torch.randn(batch, 3, *SMALL) for name in ("RGB", "NI", "TI")}
        cameras = torch.arange(batch) % CAMERAS
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


if __name__ == "__main__":
    main()
