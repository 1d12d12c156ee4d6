"""Own data without code: DATASETS.NAMES Folder and CSV, with images that are absent."""

import csv
import json
import random
import shlex
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from commands import prepared, squared_distances
from numeric import generator, shift_seed
from ranking_cases import assert_same
from tiny import CONFIG, ROOT
from triplets import pixels, save

import demo_sdtps
from demo_sdtps.commands import check_data, search
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import MODALITIES, UserError, load_cfg, with_values
from demo_sdtps.datasets import SPLITS, Sample, read_splits
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.loaders import batches, test_loader, train_loader
from demo_sdtps.evaluation.protocol import (
    by_trained_cameras,
    evaluate_reid,
    make_test_data,
    rank_features,
)
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.reports.data import count_samples
from tests.reference import ranking

SIZE = (16, 32)
MARKET = shlex.split(
    "DATASETS.FOLDERS '[train=bounding_box_train, gallery=bounding_box_test, RGB=.]' MODEL.MODALITIES [RGB] "
    r"DATASETS.PATTERN '(?P<identity>-1|\d{4})_c(?P<camera>\d)'"
)
TINY = shlex.split(
    "MODEL.TRANSFORMER_TYPE test_vit MODEL.PATCH_SIZE 8 MODEL.STRIDE_SIZE [8,8] INPUT.SIZE_TRAIN [32,16] "
    "INPUT.SIZE_TEST [32,16] DATALOADER.NUM_INSTANCE 2 SOLVER.IMS_PER_BATCH 4 DATALOADER.NUM_WORKERS 0 "
    "MODEL.PRETRAIN_PATH_T none"
)


def configuration(root, name="Folder", *opts):
    return load_cfg(
        None, ["DATASETS.NAMES", name, "DATASETS.ROOT_DIR", str(root), *TINY, *map(str, opts)]
    )


def write_incomplete(root, junk=True):
    """ROOT/{train,query,gallery}/{RGB,NI,TI} of triplets with one to three images → (split, name, identity, camera, paths)."""
    draw, rows = random.Random(shift_seed(1)), []
    identities = ["0007", "0011", "0012", "0030", *["-01"] * junk]
    for split in SPLITS:
        for number, (identity, camera) in enumerate(product(identities, (2, 5, 9))):
            nested = f"{split}/" * (number % 3 == 0)  # the name of another folder
            name = f"{nested}{identity}_c{camera}_{number:03}"
            present = draw.sample(MODALITIES, draw.randint(1, 3))
            for modality in present:
                image = pixels(abs(int(identity)), number, modality, *SIZE)
                save(root / split / modality / f"{name}.png", image)
            paths = tuple(
                str(root / split / modality / f"{name}.png") if modality in present else None
                for modality in MODALITIES
            )
            if identity != "-01":
                rows.append((split, name, identity, camera, paths))
    return rows


PATTERN = ("DATASETS.PATTERN", r"(?P<identity>-?\d+)_c(?P<camera>\d)")


def expected_samples(rows, split, modalities=MODALITIES):
    """Samples that a split must have: cameras by their order, 2, 5, 9 → 0, 1, 2."""
    samples = []
    for _, _, identity, camera, paths in sorted(row for row in rows if row[0] == split):
        read = [name in modalities for name in MODALITIES]
        paths = tuple(path if is_read else None for path, is_read in zip(paths, read, strict=True))
        if any(paths):
            samples.append(Sample(paths, int(identity), (2, 5, 9).index(camera)))
    return samples


def write_table(path, rows):
    with open(path, "w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets write it
        writer = csv.writer(file)
        writer.writerow(["Identity", "camera", "split", "note", "RGB", "ni", "ti"])
        for split, _, identity, camera, paths in rows:
            files = [name and str(Path(name).relative_to(path.parent)) for name in paths]
            writer.writerow([f"person {identity}", f"camera {camera}", split, "", *files])


@pytest.mark.parametrize("modalities", [MODALITIES, ("NI", "TI"), ("RGB",)], ids="+".join)
def test_folders_are_read_with_what_they_have(tmp_path, modalities):
    rows = write_incomplete(tmp_path)
    cfg = configuration(tmp_path, "Folder", *PATTERN, "MODEL.MODALITIES", list(modalities))
    assert read_splits(cfg) == {
        split: expected_samples(rows, split, modalities) for split in SPLITS
    }


def test_a_table_has_the_samples_of_the_folders_under_labels_of_any_text(tmp_path):
    rows = write_incomplete(tmp_path)
    write_table(tmp_path / "persons.csv", rows)
    splits = read_splits(cfg := configuration(tmp_path / "persons.csv", "CSV"))
    others = by_trained_cameras(cfg, splits, ["camera 9", "", "camera 2"], 3)
    names = {sample.camera: sample.camera_name for sample in others["query"]}
    assert names == {0: "camera 9", 2: "camera 2", 3: "camera 5"}
    numbers = {7: 0, 11: 1, 12: 2, 30: 3}
    for split, samples in splits.items():
        assert {
            replace(sample, identity=numbers[sample.identity])
            for sample in expected_samples(rows, split)
        } == {*samples}


@pytest.mark.parametrize("name", ["Folder", "CSV"])
def test_data_without_cameras(tmp_path, name):
    """Nothing is excluded but the triplet itself, here in query and gallery, and a model has no embedding of cameras."""
    rows = [row for row in write_incomplete(tmp_path, junk=False) if row[0] != "gallery"]
    table = tmp_path / "persons.csv"
    write_table(table, [*rows, *(("gallery", *row[1:]) for row in rows if row[0] == "query")])
    table.write_text(table.read_text().replace("Identity,camera", "identity,by"))
    place = table if name == "CSV" else tmp_path
    opts = ("DATASETS.PATTERN", r"(?P<identity>\d+)_c", "DATASETS.FOLDERS", "[gallery=query]")
    cfg = configuration(place, name, *opts, "OUTPUT_DIR", "x")
    splits = read_splits(cfg)
    samples = [sample for split in splits.values() for sample in split]
    assert {sample.camera for sample in samples} == {UNKNOWN}
    assert len({sample.scene for sample in samples}) == len(rows)
    data, draws = make_test_data(cfg, splits["query"], splits["gallery"]), generator()
    features = torch.nn.functional.normalize(torch.randn(len(data.samples), 6, generator=draws))
    distances, ids = squared_distances(features).tolist(), [one.identity for one in splits["query"]]
    expected = ranking.evaluate_distances(distances, ids, ids, *[[*range(len(ids))]] * 2)
    all_columns = with_values(cfg, {"TEST.CROSS_MODAL_DISTANCE": "all"})
    assert_same(rank_features(all_columns, features, data), *expected)
    task = prepared(with_values(cfg, {"OUTPUT_DIR": str(tmp_path / "run")}))
    assert task.model.backbone.camera_embedding is None and cfg.MODEL.SIE_CAMERA
    assert any("the data have no cameras" in text for text in task.notes)


def test_market_1501s_folders(tmp_path):
    """RGB alone, no folder of a modality, identity -1 left out."""
    train, query, gallery = (
        tmp_path / f for f in ("bounding_box_train", "query", "bounding_box_test")
    )
    expected = {
        "train": [
            (train / "0002_c1s1_000451_03.jpg", 2, 0),
            (train / "0007_c3s3_077419_03.jpg", 7, 2),
        ],
        "query": [(query / "0001_c1s1_001051_00.jpg", 1, 0)],
        "gallery": [(gallery / "0001_c2s1_009066_01.jpg", 1, 1)],
    }
    junk = gallery / "-1_c1s1_000401_03.jpg"
    for path in [junk, *(path for rows in expected.values() for path, _, _ in rows)]:
        save(path, pixels(1, 2, "RGB", *SIZE))
    words = *MARKET, "MODEL.MODALITIES", "[RGB, TI]", "TEST.MISS", "r"
    splits = read_splits(cfg := configuration(tmp_path, "Folder", *words))
    assert splits == {
        split: [Sample((str(path), None, None), *labels) for path, *labels in rows]
        for split, rows in expected.items()
    }
    with pytest.raises(UserError, match="RGB alone"):
        make_test_data(cfg, splits["query"], splits["gallery"])


@pytest.mark.parametrize("is_joint", [True, False], ids=["joint", "separate"])
def test_absent_images_are_zeros_in_training_and_evaluation(tmp_path, is_joint):
    """Zeros of the network's input, not black pixels; the images that are there are not."""
    rows = write_incomplete(tmp_path)
    opts = ("INPUT.JOINT_AUGMENTATION", is_joint, "INPUT.RE_PROB", 0)
    cfg = configuration(tmp_path, "Folder", *PATTERN, *opts)
    samples = expected_samples(rows, "gallery")

    def shown(loader):
        """Whether an image has other values than zeros, (samples, modalities)."""
        stacked = [torch.stack([*batch.images.values()], dim=1) for batch in batches(loader)]
        return torch.cat(stacked).flatten(2).any(dim=2)

    present = [[path is not None for path in sample.paths] for sample in samples]
    assert shown(test_loader(cfg, samples)).tolist() == present
    training = shown(train_loader(cfg, samples))
    assert training.any(dim=1).all() and not training.all()


@pytest.mark.parametrize(
    ("opts", "named"),
    [
        (("DATASETS.FOLDERS", "[test=x]"), "DATASETS.FOLDERS"),
        (("DATASETS.FOLDERS", "[RGB=x, RGB=y]"), "one alone"),
        (("DATASETS.PATTERN", r"(?P<camera>\d+)"), "DATASETS.PATTERN"),
        (("DATASETS.PATTERN", "(?P<identity"), "DATASETS.PATTERN"),
        (("DATASETS.PATTERN", r"(?P<identity>\d+)_c(?P<Camera>\d)"), "small letters .'camera'"),
        (("DATASETS.PATTERN", r"(?P<identity>\d{9})_c(?P<camera>\d)"), "DATASETS.PATTERN"),
        (("DATASETS.PATTERN", r"(?P<identity>-1|\d+)_(x(?P<camera>\d))?"), "camera"),
    ],
)
def test_mistakes_in_folders_are_told(tmp_path, opts, named):
    write_incomplete(tmp_path)
    with pytest.raises(UserError, match=named):
        read_splits(configuration(tmp_path, "Folder", *PATTERN, *opts))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("train,7,1,x.png,,\n\ntrain,7,,x.png,,", "x.png"),
        ("train,7,1,lost.png,,", "lost.png"),
        ("learn,7,1,x.png,,", "x.png"),
        ("train,,1,x.png,,", "x.png"),
        ("train,André,1,x.png,,", "UTF-8"),
        ("", "empty"),
        (None, "persons.csv"),
    ],
    ids=str,
)
def test_mistakes_in_a_table_are_told(tmp_path, line, named):
    save(tmp_path / "x.png", pixels(1, 1, "RGB", *SIZE))
    table = tmp_path / "persons.csv"
    if line is None:
        table.mkdir()
    else:
        table.write_text(f"split,identity,camera,rgb,ni,ti\n{line}\n", encoding="latin-1")
    with pytest.raises(UserError, match=named):
        read_splits(configuration(table, "CSV"))


def test_images_without_labels_are_refused_where_labels_are_needed(refusal, tmp_path):
    words = ["--config_file", CONFIG, "DATASETS.NAMES", "Images", "DATASETS.ROOT_DIR", "photos"]
    (tmp_path / "photos").mkdir()
    assert "photos has no image in RGB, NI, TI" in refusal(check_data.main, *words)
    save(tmp_path / "photos" / "RGB" / "x.png", pixels(1, 1, "RGB", *SIZE))
    for command in (train_net, check_data):
        assert "DATASETS.NAMES is Images" in refusal(command.main, *words)


# From zero


@pytest.mark.parametrize("name", ["folders", pytest.param("a table", marks=pytest.mark.slow)])
def test_the_three_commands_of_the_tutorial(tmp_path, monkeypatch, success, name):
    """As docs/own_data.md has them, on triplets that lack images, with a small model."""
    monkeypatch.chdir(tmp_path)
    rows = write_incomplete(tmp_path / "my_data", junk=False)
    if name == "a table":
        write_table(tmp_path / "my_data" / "persons.csv", rows)
    text = (ROOT / "docs" / "own_data.md").read_text().split("# Own data from zero", 1)[1]
    block = text.split("```bash\n")[1].split("```")[0].replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    tools = {"train_net.py": train_net.main, "test_net.py": test_net.main, "search": search.main}
    assert [script for script, *_ in commands] == list(tools)
    more = [*TINY, *shlex.split("MODEL.SLIM_BLOCKS [1] MODEL.SLIM_KEEP [0.5] SOLVER.MAX_EPOCHS 1")]
    more += PATTERN
    if name == "a table":
        more += ["DATASETS.NAMES", "CSV", "DATASETS.ROOT_DIR", "my_data/persons.csv"]
    for script, *words in commands:
        opts = more if script == "train_net.py" else []
        success(tools[script], *words, *opts)
    assert (tmp_path / "hits.html").stat().st_size > 10_000
    (record,) = json.loads(Path("runs/Own/DeMo_Slim/metrics.json").read_text())[-1:]
    assert record["patterns"]["3"]["mAP"] > 0
    card = str(demo_sdtps.load("runs/Own/DeMo_Slim/best.pth").generate_model_card())
    origin = "persons" if name == "a table" else "my_data"
    assert f"Trained on own images, {origin} (4 identities), read as DATASETS.NAMES" in card


@pytest.mark.parametrize("name", ["Folder", "CSV"])
def test_a_modality_without_a_folder_or_a_column_is_missing_everywhere(tmp_path, name):
    """Without any modality there is an error."""
    rows = write_incomplete(tmp_path, junk=False)
    table = tmp_path / "persons.csv"
    expected = {
        split: expected_samples([(*row[:4], (row[4][0], None, row[4][2])) for row in rows], split)
        for split in SPLITS
    }
    place = tmp_path if name == "Folder" else table
    for split in SPLITS:
        shutil.rmtree(tmp_path / split / "NI")
    with open(table, "w", newline="") as file:
        lines = [(row[0], *row[2:4], row[4][0], row[4][2]) for row in rows]
        csv.writer(file).writerows([("split", "identity", "camera", "rgb", "ti"), *lines])
    opts = (*PATTERN, "MODEL.MODALITIES", "[RGB, NI, TI]")
    splits = read_splits(configuration(place, name, *opts))
    assert {split: {*samples} for split, samples in splits.items()} == {
        split: {*samples} for split, samples in expected.items()
    }
    cfg = configuration(place, name, *opts, "TEST.MISS", "all", "MODEL.SLIM_BLOCKS", "[]")
    for samples in splits.values():
        counts = count_samples(samples, MODALITIES, False)
        assert counts["NI"] == 0 < counts["RGB"] <= counts["triplets"] == len(samples)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    assert {*evaluate_reid(cfg, make_model(cfg, 4, 3).eval(), data)} == {"nothing", "r", "t"}
    with pytest.raises(UserError, match=str(place)):
        read_splits(configuration(place, name, *PATTERN, "MODEL.MODALITIES", "[NI]"))
