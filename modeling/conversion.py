"""What tools/convert_checkpoint.py does: checkpoints under other names, and backbones alone."""
from pathlib import Path

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.modeling.checkpoint import read_checkpoint, save_whole
from demo_sdtps.modeling.weights import Weights, to_demo, unknown_names

NAMES = {"demo": "DeMo's", "ours": "our"}
BACKBONE, BACKBONE_PREFIX = "backbone", "backbone.vit."


def convert(path: Path, output: Path, to: str) -> None:
    """Write the weights of the checkpoint `path` `to` the names "demo" or "ours", or its "backbone" alone. Raises
    `UserError`."""
    if output.exists() and output.samefile(path):
        raise UserError(f"The output {output} is the checkpoint to read; choose another.")
    found = read_checkpoint(path)
    if to == BACKBONE:
        weights = backbone_of(found.model, path)
        save_whole(weights, output)
        print_lines(f"Wrote {len(weights)} tensors of the backbone to {output}, to start from with MODEL.PRETRAIN_PATH_T "
                    f"{output}")
        return
    if found.has_demo_names == (to == "demo"):
        raise UserError(f"The weights {path} have {NAMES[to]} names already, so there is nothing to "
                        f"convert; give --to {'ours' if found.has_demo_names else 'demo'} or use the file as it is.")

    weights = to_demo(found.model) if to == "demo" else found.model
    about = {"num_class": found.num_class, "camera_num": found.camera_num}
    save_whole(weights if to == "demo" else {"model": weights, **about}, output)
    print_lines(f"Wrote {len(weights)} tensors under {NAMES[to]} names to {output}: {found.num_class} identities, "
                f"{found.camera_num} cameras")
    if unknown := unknown_names(found.model):
        print_lines(f"{len(unknown)} tensors are no part of a model here and kept their names: {', '.join(unknown[:5])}"
                    f"{', …' if len(unknown) > 5 else ''}")


def backbone_of(model: Weights, path: Path) -> Weights:
    """The Vision Transformer's weights in timm's names. Raises `UserError` where there are none."""
    weights = {name.removeprefix(BACKBONE_PREFIX): tensor for name, tensor in model.items() if name.startswith(BACKBONE_PREFIX)}
    if not weights:
        raise UserError(f"The weights {path} have no {BACKBONE_PREFIX}…, so they are not those of a model; give a checkpoint "
                        "of train_net.py or of DeMo.")
    return weights
