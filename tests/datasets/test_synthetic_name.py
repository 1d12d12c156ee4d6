"""DATASETS.NAMES Synthetic, as configs/Synthetic have it: the drawn pedestrians beside a real RGBNT201, and weights trained on
them under either name."""

import shutil

import pytest
import torch
from commands import CONFIG, checkpoint_file, cli_args_for, parse_table
from layouts import write_rgbnt201
from triplets import config

from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits

FORMER = ("DATASETS.NAMES", "RGBNT201")
"""The name of the drawn pedestrians in configurations and checkpoints of a former version."""


@pytest.fixture
def data(tiny_root, tmp_path):
    """A folder with synthetic/, as `make demo` fills it."""
    shutil.copytree(tiny_root, tmp_path / "data" / "synthetic")
    return tmp_path / "data"


def test_the_drawn_pedestrians_are_read_and_not_a_real_data_set_beside_them(data):
    """In their folder, with the file that says what they are or without, and beside it."""
    write_rgbnt201(data)
    actual = read_splits(config(data))
    assert {split: len(samples) for split, samples in actual.items()} == {
        "train": 48,
        "query": 32,
        "gallery": 32,
    }
    assert actual == read_splits(config(data / "synthetic"))
    assert actual == read_splits(config(data / "synthetic", *FORMER))
    assert actual != read_splits(config(data, *FORMER))
    (data / "synthetic" / "RGBNT201" / "synthetic.json").unlink()
    assert actual == read_splits(config(data)) == read_splits(config(data / "synthetic"))


def test_weights_trained_as_rgbnt201_in_their_folder_fit(command, data, tmp_path):
    """With their configuration and with that of now, and the same figures; weights of another data set do not."""
    cfg = load_cfg(CONFIG, cli_args_for(data / "synthetic", *FORMER)[2:])
    weights = checkpoint_file(tmp_path / "w.pth", cfg)
    assert torch.load(weights)["dataset"] == "RGBNT201"
    tables = []
    for words, name in (
        ([], f"RGBNT201 in {data / 'synthetic'}"),
        (cli_args_for(data / "synthetic"), f"Synthetic in {data / 'synthetic'}"),
        (cli_args_for(data), f"Synthetic in {data}"),
    ):
        code, stdout, stderr = command(test_net.main, "--weight", weights, *words)
        assert code == 0 and stdout.startswith(f"{name}, 32 queries"), stderr
        tables.append(parse_table(stdout))
    assert tables[0] == tables[1] == tables[2] and len(tables[0]) == 3
    for name, words in (("MSVR310", ()), ("Synthetic", FORMER)):
        torch.save(torch.load(weights) | {"dataset": name}, weights)
        code, _, stderr = command(test_net.main, *cli_args_for(data, *words, "--weight", weights))
        assert code == 2 and f"were trained on {name}, but" in stderr
