"""From files on disk to batches: reader, pictures, transforms, sampler, loaders."""
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from config import MODALITIES, UserError, load_cfg
from datasets import SPLITS, identity_labels, read_splits
from datasets.base import Sample
from datasets.loaders import CACHE_LIMIT, TripletDataset, batches, seeded, test_loader, train_loader, use_cache
from datasets.pictures import decode, verify
from datasets.samplers import IdentityBatchSampler
from datasets.transforms import test_transform, train_transform

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
SIZE = ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]"]
PLAIN = ["INPUT.PROB", "0.0", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.0"]
FIRST = "000001_cam1_0_00.jpg"


def config(root, *opts):
    return load_cfg(CONFIG, ["DATASETS.ROOT_DIR", str(root), *SIZE, "MODEL.STRIDE_SIZE", "[4, 4]", "SOLVER.IMS_PER_BATCH", "8",
                             "DATALOADER.NUM_WORKERS", "0", *opts])


def message_of(call, *arguments):
    with pytest.raises(UserError) as raised:
        call(*arguments)
    return str(raised.value)


def pictures_of(root, split="train_171", modality="RGB"):
    return root / "RGBNT201" / split / modality


# RGBNT201 on disk

def test_samples_are_what_the_files_are(tiny_root):
    splits = read_splits(config(tiny_root))
    assert list(splits) == list(SPLITS)
    for split, folder in (("train", "train_171"), ("query", "test"), ("gallery", "test")):
        names = sorted(path.name for path in pictures_of(tiny_root, folder).iterdir())
        assert [Path(sample.paths[0]).name for sample in splits[split]] == names
        for sample, name in zip(splits[split], names, strict=True):
            assert sample.paths == tuple(str(pictures_of(tiny_root, folder, modality) / name) for modality in MODALITIES)
            assert (sample.identity, sample.camera) == (int(name[:6]), int(name[10]) - 1)
    assert len(splits["train"]) == 6 * 8 and len(splits["query"]) == 4 * 8
    assert {sample.identity for sample in splits["train"]} == {1, 2, 3, 4, 5, 6}
    assert {sample.camera for sample in splits["train"]} == {0, 1, 2, 3}
    assert splits["query"] == splits["gallery"]


def test_only_the_splits_asked_for_are_read(own_root):
    for modality in MODALITIES:
        for path in pictures_of(own_root, modality=modality).iterdir():
            path.unlink()
    assert list(read_splits(config(own_root), ("query",))) == ["query"]


def test_what_is_no_picture_of_a_modality_is_not_read(own_root):
    expected = read_splits(config(own_root))
    assert (own_root / "RGBNT201" / "train_171" / "MASK").is_dir()
    (pictures_of(own_root) / "Thumbs.db").write_bytes(b"x")
    (own_root / "RGBNT201" / "readme.txt").write_text("x")
    assert read_splits(config(own_root)) == expected


def test_a_name_may_go_on_as_it_likes_after_the_camera(own_root):
    for modality in MODALITIES:
        (pictures_of(own_root, modality=modality) / FIRST).rename(
            pictures_of(own_root, modality=modality) / "000258_cam3_1_seq02_07.jpg")
    found = read_splits(config(own_root), ("train",))["train"]
    assert (found[-1].identity, found[-1].camera) == (258, 2)
    assert len(identity_labels(found)) == 7


def test_labels_count_identities_in_order():
    samples = [Sample(("a", "b", "c"), identity, 0) for identity in (30, 7, 30, 258, 7)]
    assert identity_labels(samples) == {7: 0, 30: 1, 258: 2}


def test_a_missing_data_set_is_told_with_what_to_do(tmp_path):
    message = message_of(read_splits, config(tmp_path))
    for part in (str(tmp_path / "RGBNT201"), "DATASETS.ROOT_DIR", "{train_171,test}/{RGB,NI,TI}", FIRST, "make demo"):
        assert part in message


def test_the_folder_itself_in_place_of_its_parent_is_told(tiny_root):
    message = message_of(read_splits, config(tiny_root / "RGBNT201"))
    assert "set DATASETS.ROOT_DIR to its parent folder" in message


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize(("split", "folder"), [("train", "train_171"), ("query", "test")])
def test_a_missing_modality_folder_is_told(own_root, modality, split, folder):
    pictures_of(own_root, folder, modality).rename(own_root / "elsewhere")
    message = message_of(read_splits, config(own_root))
    assert str(pictures_of(own_root, folder, modality)) in message and "is missing" in message
    assert split in message and "{RGB,NI,TI}" in message


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_missing_picture_of_one_modality_is_told(own_root, modality):
    (pictures_of(own_root, modality=modality) / FIRST).unlink()
    message = message_of(read_splits, config(own_root))
    assert str(pictures_of(own_root, modality=modality) / FIRST) + " is missing" in message
    there = next(other for other in MODALITIES if other != modality)
    assert f"has no {modality} picture" in message and f"such as {pictures_of(own_root, modality=there) / FIRST}" in message


def test_two_missing_pictures_of_a_triplet_are_told_together(own_root):
    for modality in ("RGB", "TI"):
        (pictures_of(own_root, modality=modality) / FIRST).unlink()
    assert "has no RGB and no TI picture" in message_of(read_splits, config(own_root))


@pytest.mark.parametrize(("split", "folder"), [("train", "train_171"), ("query", "test")])
def test_an_empty_split_is_told(own_root, split, folder):
    for modality in MODALITIES:
        for path in pictures_of(own_root, folder, modality).iterdir():
            path.unlink()
    message = message_of(read_splits, config(own_root))
    assert f"{split} split" in message and "is empty" in message and str(own_root / "RGBNT201") in message
    assert "{train_171,test}" in message


@pytest.mark.parametrize("name", ["portrait.jpg", "00001_cam1_0_00.jpg", "000001_c1_0_00.jpg", "000001_camX_0.jpg",
                                  "000001_cam0_0_00.jpg"])
def test_a_name_that_says_no_identity_or_camera_is_told(own_root, name):
    for modality in MODALITIES:
        folder = pictures_of(own_root, modality=modality)
        (folder / FIRST).rename(folder / name)
    message = message_of(read_splits, config(own_root))
    assert str(pictures_of(own_root) / name) in message and FIRST in message and "rename or remove" in message


# Pictures

def zero_bytes(path):
    path.write_bytes(b"")


def a_text(path):
    path.write_text("this is a text")


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-200])


def head_alone(path):
    path.write_bytes(path.read_bytes()[:30])


@pytest.mark.parametrize("damage", [zero_bytes, a_text, cut_short, head_alone])
def test_a_damaged_picture_is_told_by_name(own_root, damage):
    path = pictures_of(own_root, modality="NI") / FIRST
    damage(path)
    message = message_of(decode, str(path))
    assert message.startswith(f"The picture {path} cannot be read") and "replace it or remove its triplet" in message
    assert "\n" not in message
    assert ("it is empty" in message) == (damage is zero_bytes)


def test_a_picture_that_has_gone_is_told(tmp_path):
    assert str(tmp_path / "gone.jpg") in message_of(decode, str(tmp_path / "gone.jpg"))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P"])
def test_every_kind_of_picture_gets_three_channels(tmp_path, mode):
    path = tmp_path / "picture.png"
    Image.new("RGB", (5, 7), (204, 204, 204)).convert(mode, dither=Image.Dither.NONE).save(path)
    found = decode(str(path))
    assert found.dtype == torch.uint8 and found.shape == (3, 7, 5)
    assert (found.int() - 204).abs().max() <= 2


def test_verify_lists_all_damaged_pictures_and_no_other(own_root):
    samples = read_splits(config(own_root), ("train",))["train"]
    damaged = [Path(samples[3].paths[1]), Path(samples[17].paths[0]), Path(samples[40].paths[2])]
    for path, damage in zip(damaged, (zero_bytes, a_text, cut_short), strict=True):
        damage(path)
    head, *lines = message_of(verify, samples).splitlines()
    assert head.startswith("3 of 144 pictures") and "replace them or remove their triplets" in head
    assert len(lines) == 3
    assert all(any(str(path) in line for line in lines) for path in damaged)
    assert sum("it is empty" in line for line in lines) == 1


def test_verify_is_content_with_whole_pictures(tiny_root):
    verify([sample for split in read_splits(config(tiny_root)).values() for sample in split])


# Sampler

COUNTS = {10: 4, 11: 9, 12: 2, 13: 1, 14: 12, 15: 5, 16: 8}
LABELS = [label for label, count in COUNTS.items() for _ in range(count)]


def epoch_of(sampler, epoch):
    sampler.epoch = epoch
    return list(sampler)


@pytest.mark.parametrize(("batch_size", "instances"), [(8, 4), (12, 4), (4, 2), (6, 1), (9, 3)])
def test_sampler_batches(batch_size, instances):
    sampler = IdentityBatchSampler(LABELS, batch_size, instances, seed=3)
    for epoch in range(1, 6):
        found = epoch_of(sampler, epoch)
        assert len(found) == len(sampler) > 0
        used, groups = Counter(), Counter()
        for batch in found:
            assert len(batch) == batch_size
            indices = [index for index, _ in batch]
            parts = [indices[start:start + instances] for start in range(0, batch_size, instances)]
            identities = [{LABELS[index] for index in part} for part in parts]
            assert all(len(identity) == 1 for identity in identities)
            assert len(set().union(*identities)) == batch_size // instances  # no identity twice in a batch
            used.update(indices)
            groups.update(identity.pop() for identity in identities)
        for label, count in COUNTS.items():
            # One full group for a short identity; the remainder of the others is dropped.
            assert groups[label] <= max(1, count // instances)
        assert all(times == 1 for index, times in used.items() if COUNTS[LABELS[index]] >= instances)
        # It stops only where fewer identities with a group left remain than a batch needs.
        left = sum(groups[label] < max(1, count // instances) for label, count in COUNTS.items())
        assert left < batch_size // instances


def test_a_short_identity_is_filled_with_its_own_samples():
    sampler = IdentityBatchSampler([0, 0, 0, 1], batch_size=8, instances=4, seed=0)
    seen = set()
    for epoch in range(20):
        (batch,) = epoch_of(sampler, epoch)
        by_identity = [sorted(index for index, _ in batch if (index == 3) == single) for single in (False, True)]
        assert by_identity[1] == [3, 3, 3, 3]
        assert len(by_identity[0]) == 4 and set(by_identity[0]) <= {0, 1, 2}
        seen.add(tuple(by_identity[0]))
    assert len(seen) > 3  # drawn with replacement as a whole: more than all three and one again
    assert any(len(set(group)) < 3 for group in seen)


def test_a_picture_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "large.jpg"
    Image.new("RGB", (64, 64)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow refuses twice as many
    with pytest.raises(UserError, match=r"large\.jpg"):
        decode(str(path))


def test_the_remainder_is_another_one_every_epoch():
    sampler = IdentityBatchSampler([0] * 5 + [1] * 5, batch_size=8, instances=4, seed=0)
    left_out = {frozenset(range(10)) - {index for batch in epoch_of(sampler, epoch) for index, _ in batch}
                for epoch in range(30)}
    assert all(len(left) == 2 for left in left_out)
    assert len(left_out) > 5


def test_epochs_differ_and_seed_and_epoch_decide():
    ours, same = (IdentityBatchSampler(LABELS, 8, 4, seed=3) for _ in range(2))
    other = IdentityBatchSampler(LABELS, 8, 4, seed=4)
    assert epoch_of(ours, 1) != epoch_of(ours, 2)
    assert epoch_of(ours, 1) != epoch_of(other, 1)
    torch.manual_seed(9)  # the state of torch plays no part
    same.epoch = 5
    assert epoch_of(same, 1) == epoch_of(ours, 1)


def test_drawing_batches_leaves_torch_as_it_was():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(IdentityBatchSampler(LABELS, 8, 4, seed=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_sample_of_an_epoch_has_a_seed_of_its_own():
    seeds = [seed for epoch in (1, 2) for batch in epoch_of(IdentityBatchSampler(LABELS, 8, 4, seed=3), epoch)
             for _, seed in batch]
    assert len(set(seeds)) == len(seeds) > 40


def test_all_identities_take_part():
    sampler = IdentityBatchSampler(LABELS, 8, 4, seed=0)
    seen = Counter(LABELS[index] for epoch in range(40) for batch in epoch_of(sampler, epoch) for index, _ in batch)
    assert set(seen) == set(COUNTS)


# Transforms

def random_picture(height=32, width=16, seed=0):
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_evaluation_scales_to_minus_one_and_one(tiny_root):
    picture = random_picture()
    assert torch.allclose(test_transform(config(tiny_root))(picture), (picture / 255 - 0.5) / 0.5, atol=1e-6)


def test_evaluation_resizes_bilinearly_first(tiny_root):
    picture = random_picture(48, 40)
    resized = F.interpolate(picture[None].float(), (32, 16), mode="bilinear", antialias=True, align_corners=False)[0]
    found = test_transform(config(tiny_root))(picture)
    assert found.dtype == torch.float32 and found.shape == (3, 32, 16)
    # Rounding to whole grey levels on the way is worth half a level.
    assert (found - (resized / 255 - 0.5) / 0.5).abs().max() < 1.5 / 127.5


def test_mean_and_deviation_are_the_configurations(tiny_root):
    cfg = config(tiny_root, "INPUT.PIXEL_MEAN", "[0.1, 0.2, 0.3]", "INPUT.PIXEL_STD", "[1.0, 2.0, 4.0]")
    picture = random_picture()
    expected = (picture / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2.0, 4.0])[:, None, None]
    assert torch.allclose(test_transform(cfg)(picture), expected, atol=1e-6)


def test_evaluation_is_not_random(tiny_root):
    transform, picture = test_transform(config(tiny_root)), random_picture(48, 40)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = transform(picture)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(transform(picture), first)


def test_training_without_chance_is_the_picture(tiny_root):
    picture = random_picture()
    assert torch.allclose(train_transform(config(tiny_root, *PLAIN))(picture), (picture / 255 - 0.5) / 0.5, atol=1e-6)


def test_training_resizes_bicubically(tiny_root):
    picture = random_picture(64, 32)
    resized = F.interpolate(picture[None].float(), (32, 16), mode="bicubic", antialias=True, align_corners=False)[0]
    found = train_transform(config(tiny_root, *PLAIN))(picture)
    assert (found - (resized.clamp(0, 255) / 255 - 0.5) / 0.5).abs().max() < 2.5 / 127.5
    assert not torch.equal(found, test_transform(config(tiny_root))(picture))


def test_a_certain_flip_mirrors(tiny_root):
    picture = random_picture()
    found = train_transform(config(tiny_root, *PLAIN, "INPUT.PROB", "1.0"))(picture)
    assert torch.allclose(found, (picture.flip(2) / 255 - 0.5) / 0.5, atol=1e-6)


def test_half_the_pictures_are_flipped(tiny_root):
    transform, picture = train_transform(config(tiny_root, *PLAIN, "INPUT.PROB", "0.5")), random_picture()
    torch.manual_seed(0)
    mirrored = (picture.flip(2) / 255 - 0.5) / 0.5
    flips = sum(torch.allclose(transform(picture), mirrored, atol=1e-6) for _ in range(200))
    assert 70 < flips < 130


def test_padding_moves_the_picture_within_a_black_border(tiny_root):
    cfg = config(tiny_root, *PLAIN, "INPUT.PADDING", "3")
    transform, picture = train_transform(cfg), random_picture()
    padded = F.pad(((picture / 255 - 0.5) / 0.5), (3, 3, 3, 3), value=-1.0)  # black before normalisation
    crops = {(top, left): padded[:, top:top + 32, left:left + 16] for top in range(7) for left in range(7)}
    torch.manual_seed(0)
    seen = set()
    for _ in range(60):
        found = transform(picture)
        places = [place for place, crop in crops.items() if torch.allclose(found, crop, atol=1e-6)]
        assert len(places) == 1
        seen.add(places[0])
    assert {top for top, _ in seen} == set(range(7)) and {left for _, left in seen} == set(range(7))


def test_certain_erasing_replaces_one_rectangle_by_noise(tiny_root):
    cfg = config(tiny_root, *PLAIN, "INPUT.RE_PROB", "1.0")
    transform, picture = train_transform(cfg), random_picture()
    plain = (picture / 255 - 0.5) / 0.5
    torch.manual_seed(0)
    random.seed(0)
    for _ in range(20):
        found = transform(picture)
        erased = (found - plain).abs().amax(0) > 1e-6
        rows, columns = erased.any(1).nonzero()[:, 0], erased.any(0).nonzero()[:, 0]
        box = erased[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]
        assert box.all() and 0.01 < box.numel() / erased.numel() < 0.5
        noise = found[:, erased]
        assert noise.unique().numel() > 0.9 * noise.numel()  # per pixel, not one colour
        assert not torch.allclose(noise[0], noise[1])


# Randomness that can be fixed

def states():
    return torch.get_rng_state(), random.getstate()


def test_seeded_draws_the_same_and_restores_both_states():
    torch.manual_seed(1)
    random.seed(1)
    torch_before, random_before = states()
    drawn = []
    for _ in range(2):
        with seeded(42):
            drawn.append((torch.rand(3).tolist(), random.random()))
        torch_after, random_after = states()
        assert torch.equal(torch_after, torch_before) and random_after == random_before
    assert drawn[0] == drawn[1]
    with seeded(43):
        assert torch.rand(3).tolist() != drawn[0][0] and random.random() != drawn[0][1]


def test_seeded_restores_after_an_exception():
    torch_before, random_before = states()
    with pytest.raises(ZeroDivisionError), seeded(42):
        torch.rand(3)
        random.random()
        raise ZeroDivisionError
    torch_after, random_after = states()
    assert torch.equal(torch_after, torch_before) and random_after == random_before


def test_seeded_without_a_seed_goes_on_drawing():
    torch.manual_seed(1)
    first = torch.rand(3)
    torch.manual_seed(1)
    with seeded(None):
        assert torch.equal(torch.rand(3), first)
    assert not torch.equal(torch.rand(3), first)


# Loaders

def load_epoch(root, *opts, epoch=1):
    cfg = config(root, "INPUT.RE_PROB", "0.5", *opts)
    loader = train_loader(cfg, read_splits(cfg, ("train",))["train"])
    loader.batch_sampler.epoch = epoch
    return list(batches(loader))


def assert_equal_batches(ours, theirs):
    assert len(ours) == len(theirs) > 1
    for (images, labels, cameras), (other_images, other_labels, other_cameras) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, other_labels) and torch.equal(cameras, other_cameras)
        assert list(images) == list(other_images) == list(MODALITIES)
        assert all(torch.equal(images[modality], other_images[modality]) for modality in MODALITIES)


def test_a_training_batch(tiny_root):
    cfg = config(tiny_root)
    by_path = {decode(sample.paths[0]).numpy().tobytes(): sample for sample in read_splits(cfg, ("train",))["train"]}
    for images, labels, cameras in load_epoch(tiny_root, *PLAIN):
        assert [(images[modality].dtype, images[modality].shape) for modality in MODALITIES] == [
            (torch.float32, (8, 3, 32, 16))] * 3
        assert sorted(Counter(labels.tolist()).values()) == [4, 4]
        for index in range(8):
            sample = by_path[bytes(((images["RGB"][index] + 1) * 127.5).round().byte().numpy().tobytes())]
            assert (labels[index], cameras[index]) == (sample.identity - 1, sample.camera)
            for modality, path in zip(MODALITIES, sample.paths, strict=True):
                assert torch.allclose(images[modality][index], (decode(path) / 255 - 0.5) / 0.5, atol=1e-6)


@pytest.mark.parametrize("opts", [["DATALOADER.NUM_WORKERS", "2"], ["DATASETS.CACHE", "no"],
                                  ["DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no"]], ids=" ".join)
def test_neither_processes_nor_the_cache_change_a_bit(tiny_root, opts):
    torch.manual_seed(1)
    random.seed(1)
    expected = load_epoch(tiny_root, "DATASETS.CACHE", "yes")
    torch.manual_seed(2)
    random.seed(2)
    assert_equal_batches(load_epoch(tiny_root, *opts), expected)


def test_another_seed_or_epoch_gives_other_pictures(tiny_root):
    ours = load_epoch(tiny_root)
    for other in (load_epoch(tiny_root, "SOLVER.SEED", "5"), load_epoch(tiny_root, epoch=2)):
        assert not torch.equal(ours[0][0]["RGB"], other[0][0]["RGB"])


def test_epochs_of_one_loader_are_those_of_fresh_ones(tiny_root):
    """Loading processes live on between epochs, and see the epoch that is set."""
    cfg = config(tiny_root, "INPUT.RE_PROB", "0.5", "DATALOADER.NUM_WORKERS", "1")
    loader = train_loader(cfg, read_splits(cfg, ("train",))["train"])
    for epoch in (1, 2):
        loader.batch_sampler.epoch = epoch
        assert_equal_batches(list(batches(loader)), load_epoch(tiny_root, epoch=epoch))


@pytest.mark.parametrize("opts", [["INPUT.PROB", "0.5", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.0"],
                                  ["INPUT.PROB", "0.0", "INPUT.PADDING", "4", "INPUT.RE_PROB", "0.0"],
                                  ["INPUT.PROB", "0.0", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.5"]], ids=" ".join)
def test_modalities_draw_each_for_itself(tiny_root, opts):
    """The same picture three times comes out different, by flip, by crop and by erasing alone."""
    path = str(pictures_of(tiny_root) / FIRST)
    dataset = TripletDataset([Sample((path,) * 3, 1, 0)], [0], train_transform(config(tiny_root, *opts)), cache=False)
    triplets = [dataset[0, seed][0] for seed in range(30)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        different = sum(not torch.equal(images[first], images[second]) for images in triplets)
        assert different >= 8
    assert torch.equal(dataset[0, 3][0], triplets[3])


def test_evaluation_takes_all_samples_in_order(tiny_root):
    cfg = config(tiny_root, "TEST.IMS_PER_BATCH", "5")
    samples = read_splits(cfg, ("query",))["query"]
    loaded = list(batches(test_loader(cfg, samples)))
    assert [len(labels) for _, labels, _ in loaded] == [5] * 6 + [2]
    assert torch.cat([labels for _, labels, _ in loaded]).tolist() == [sample.identity for sample in samples]
    assert torch.cat([cameras for *_, cameras in loaded]).tolist() == [sample.camera for sample in samples]
    for place, modality in enumerate(MODALITIES):
        images = torch.cat([images[modality] for images, *_ in loaded])
        expected = torch.stack([decode(sample.paths[place]) for sample in samples])
        assert torch.allclose(images, (expected / 255 - 0.5) / 0.5, atol=1e-6)


# Slow: after the error each loading process takes 5 s to go when the loader is collected (which may be in a later test).
@pytest.mark.parametrize(("make", "workers"), [(train_loader, "0"), (test_loader, "0"),
                                               pytest.param(train_loader, "2", marks=pytest.mark.slow)])
def test_a_damaged_picture_is_one_clean_error(own_root, make, workers):
    cfg = config(own_root, "DATALOADER.NUM_WORKERS", workers, "DATASETS.CACHE", "no")
    samples = read_splits(cfg, ("train",))["train"]
    for sample in samples[::2]:  # some of them are in every epoch
        cut_short(Path(sample.paths[2]))
    with pytest.raises(UserError) as raised:
        list(batches(make(cfg, samples)))
    message = str(raised.value)
    assert any(sample.paths[2] in message for sample in samples[::2])
    assert "\n" not in message and "Traceback" not in message and type(raised.value) is UserError


def test_a_damaged_picture_is_told_while_the_cache_is_filled(own_root):
    cfg = config(own_root, "DATASETS.CACHE", "yes")
    samples = read_splits(cfg, ("train",))["train"]
    zero_bytes(Path(samples[30].paths[1]))
    assert samples[30].paths[1] in message_of(train_loader, cfg, samples)


def test_too_few_identities_for_a_batch_are_told(tiny_root):
    cfg = config(tiny_root, "SOLVER.IMS_PER_BATCH", "32")
    message = message_of(train_loader, cfg, read_splits(cfg, ("train",))["train"])
    assert "has 6 identities" in message and "needs 8" in message
    assert "lower SOLVER.IMS_PER_BATCH to at most 24" in message
    cfg = config(tiny_root, "SOLVER.IMS_PER_BATCH", "24")  # what it advises works
    assert len(train_loader(cfg, read_splits(cfg, ("train",))["train"])) > 0


def test_advice_for_too_few_identities_can_be_followed(tiny_root):
    cfg = config(tiny_root)
    samples = [sample for sample in read_splits(cfg, ("train",))["train"] if sample.identity == 1]
    assert "to at most 4" not in message_of(train_loader, cfg, samples)


def test_auto_caches_what_fits(tiny_root, monkeypatch):
    samples = read_splits(config(tiny_root), ("train",))["train"]
    bytes_needed = 48 * 3 * 3 * 32 * 16
    assert bytes_needed < CACHE_LIMIT
    for limit, fits in ((bytes_needed, True), (bytes_needed - 1, False)):
        monkeypatch.setattr("datasets.loaders.CACHE_LIMIT", limit)
        assert use_cache(config(tiny_root), samples) is fits
        assert use_cache(config(tiny_root, "DATASETS.CACHE", "yes"), samples) is True
        assert use_cache(config(tiny_root, "DATASETS.CACHE", "no"), samples) is False


def test_cached_pictures_are_not_changed_by_augmentation(tiny_root):
    cfg = config(tiny_root, "INPUT.RE_PROB", "1.0")
    samples = read_splits(cfg, ("train",))["train"][:2]
    dataset = TripletDataset(samples, [0, 0], train_transform(cfg), cache=True)
    for seed in range(10):
        dataset[1, seed]
    for cached, path in zip(dataset.pictures[1], samples[1].paths, strict=True):
        assert np.array_equal(cached.numpy(), decode(path).numpy())
