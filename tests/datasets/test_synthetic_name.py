"""DATASETS.NAMES Synthetic: the drawn pedestrians beside a real RGBNT201, and weights trained on them under either name."""

import shutil

import pytest
import torch
from commands import CONFIG, cli_args_for, table_of, weights_file
from layouts import write_rgbnt201
from triplets import config

from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits


@pytest.fixture
def data(tiny_root, tmp_path):
    """A folder with synthetic/, as `make demo` fills it."""
    shutil.copytree(tiny_root, tmp_path / "data" / "synthetic")
    return tmp_path / "data"


def words(data, *more):
    return cli_args_for(data, "DATASETS.NAMES", "Synthetic", *more)


def test_the_drawn_pedestrians_are_read_and_not_a_real_data_set_beside_them(data):
    write_rgbnt201(data)
    actual = read_splits(config(data, "DATASETS.NAMES", "Synthetic"))
    assert {split: len(samples) for split, samples in actual.items()} == {
        "train": 48,
        "query": 32,
        "gallery": 32,
    }
    assert actual == read_splits(config(data / "synthetic"))
    # As configs/Synthetic name the folder.
    assert actual == read_splits(config(data / "synthetic", "DATASETS.NAMES", "Synthetic"))
    assert actual != read_splits(config(data))


def test_weights_trained_as_rgbnt201_in_their_folder_fit(command, data, tmp_path):
    """As with configs/Synthetic; weights of another data set do not."""
    cfg = load_cfg(CONFIG, words(data)[2:])
    weights = weights_file(tmp_path / "w.pth", cfg, dataset="RGBNT201")
    code, stdout, stderr = command(test_net.main, *words(data, "--weight", weights))
    assert code == 0 and stdout.startswith(f"Synthetic in {data}, 32 queries"), stderr
    as_rgbnt201 = command(test_net.main, *cli_args_for(data / "synthetic", "--weight", weights))[1]
    assert table_of(stdout) == table_of(as_rgbnt201) and len(table_of(stdout)) == 3
    torch.save(torch.load(weights, weights_only=True) | {"dataset": "MSVR310"}, weights)
    assert (
        "were trained on MSVR310, but"
        in command(test_net.main, *words(data, "--weight", weights))[2]
    )
