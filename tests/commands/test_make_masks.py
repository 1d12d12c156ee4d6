"""demo-sdtps masks: masks by Mask R-CNN (of random weights that know the answer) and by a function."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import CONFIG, contents
from layouts import WRITERS
from PIL import Image
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_V2_Weights, maskrcnn_resnet50_fpn_v2
from triplets import config

from demo_sdtps.commands import make_masks, segmenters
from demo_sdtps.commands.segmenters import largest_instance, make_segmenter
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.masks import decode_mask, mask_path

FUNCTIONS = """
import torch

def bright(image):
    return (image.float().mean(dim=0) / 255).numpy()

def dark(image):
    return torch.zeros(image.shape[1:])

def half(image):
    return torch.arange(image.shape[2]).expand(image.shape[1:]) < image.shape[2] // 2

"""

WORDS = ("MODEL.SIE_CAMERA", "False", "MODEL.DEVICE", "cpu")


@pytest.fixture
def segment(command, tmp_path, monkeypatch):
    """Call the command with a function of FUNCTIONS, which must succeed → what it prints."""
    (tmp_path / "my_segmenters.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)

    def call(root, function, *words):
        model = ("--model", f"my_segmenters:{function}", *words)
        code, stdout, stderr = command(
            make_masks.main, "--config_file", CONFIG, *model, "DATASETS.ROOT_DIR", root, *WORDS
        )
        assert code == 0, stderr
        return stdout

    return call


@pytest.fixture
def bare_root(own_root):
    """The tiny data set without masks."""
    for folder in own_root.glob("RGBNT201/*/MASK"):
        shutil.rmtree(folder)
    return own_root


def read_mask(image, folder="../MASK"):
    path = Path(image)
    return np.asarray(Image.open(path.parent / folder / f"{path.stem}.png"))


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(np.float32)


def test_a_function_gives_the_masks_and_the_loader_reads_them(segment, bare_root):
    # query and gallery are the same 32
    assert "Wrote 80 masks and kept 0 for Synthetic" in segment(bare_root, "bright")
    splits = read_splits(config(bare_root))
    for sample in splits["train"] + splits["query"]:
        mask = read_mask(sample.paths[0])
        assert mask.dtype == np.uint8 and np.abs(mask - pixels(sample.paths[0]).mean(2)).max() <= 1
        assert np.array_equal(decode_mask(str(mask_path(sample)))[0], mask)


def test_the_union_of_all_modalities(segment, bare_root):
    segment(bare_root, "bright", "--split", "query", "--modality", "TI")
    sample = read_splits(config(bare_root), ("query",))["query"][3]
    assert np.abs(read_mask(sample.paths[0]) - pixels(sample.paths[2]).mean(2)).max() <= 1
    assert not (bare_root / "RGBNT201" / "train_171" / "MASK").exists()
    segment(bare_root, "bright", "--split", "query", "--modality", "all", "--overwrite")
    expected = np.max([pixels(path).mean(2) for path in sample.paths], axis=0)
    assert np.abs(read_mask(sample.paths[0]) - expected).max() <= 1


def test_masks_that_exist_are_kept_unless_overwritten(segment, bare_root):
    train = ("--split", "train")
    segment(bare_root, "half", *train)
    before = contents(bare_root)
    gone = sorted((bare_root / "RGBNT201" / "train_171" / "MASK").iterdir())[7]
    gone.unlink()
    stdout = segment(bare_root, "dark", *train, "DATASETS.VALIDATION", "0")
    assert "Wrote 1 mask, 1 of them without any foreground and kept 47" in stdout
    gone.unlink()
    assert "Wrote 1 mask and kept 47" in segment(bare_root, "bright", *train)
    after = contents(bare_root)
    changed = [name for name in after if after[name] != before.get(name)]
    assert len(changed) == 1 and changed[0].endswith(gone.name)
    segment(bare_root, "half", *train, "--overwrite")
    assert contents(bare_root) == before


def test_images_side_by_side_get_the_mask_of_one_modality(segment, tmp_path):
    samples = WRITERS["RGBNT100"](tmp_path / "data")["query"]
    segment(tmp_path / "data", "half", "--split", "query", "DATASETS.NAMES", "RGBNT100")
    mask = read_mask(samples[0].paths[0], folder="MASK")
    assert mask.shape == (128, 256) and (mask[:, :128] == 255).all() and (mask[:, 128:] == 0).all()


def test_of_the_instances_of_a_class_the_largest_is_the_mask():
    masks = torch.zeros(4, 1, 6, 6)
    for index, size in enumerate((2, 4, 6, 5)):
        masks[index, 0, :size, :size] = 0.9
    actual = {
        "masks": masks,
        "labels": torch.tensor([1, 1, 3, 1]),
        "scores": torch.tensor([0.9, 0.7, 0.9, 0.2]),
    }
    assert torch.equal(largest_instance(actual, [1]), masks[1, 0])
    assert torch.equal(largest_instance(actual, [3, 6, 8]), masks[2, 0])
    assert largest_instance(actual, [6]) is None


@pytest.mark.slow
@pytest.mark.soak
def test_maskrcnn_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(segmenters, "SIDE", 32)
    torch.manual_seed(0)
    network = maskrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None)
    person = MaskRCNN_ResNet50_FPN_V2_Weights.DEFAULT.meta["categories"].index("person")
    network.roi_heads.box_predictor.cls_score.bias.data[person] = 1000
    network.roi_heads.mask_predictor.mask_fcn_logits.bias.data[person] = 1000
    path = tmp_path / "maskrcnn.pth"
    torch.save(network.state_dict(), path)
    image = torch.randint(256, (3, 48, 20), dtype=torch.uint8)
    person_mask, vehicle_mask = (
        make_segmenter("maskrcnn", str(path), classes, torch.device("cpu"))(image)
        for classes in ("person", "vehicle")
    )
    assert person_mask.shape == vehicle_mask.shape == (48, 20)
    assert person_mask.max() > 0.9 and vehicle_mask.max() == 0
