"""demo-sdtps check: the counts of what is on disk, what differs from the expected, and everything that cannot be read."""

import json
import shutil
from itertools import chain

import pytest
import seps_tiny
from commands import CONFIG, ROOT, cli_args_for
from triplets import CAMERAS, SCENES, TEST, TRAIN, WRITERS

from demo_sdtps.commands import check_data
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.reports.data import published_counts
from seps import __main__ as seps

SMALL = ("SOLVER.IMS_PER_BATCH", "8", "DATALOADER.NUM_INSTANCE", "2")


@pytest.fixture
def check(command, tmp_path):
    """Call the command with --json → its exit code, what it prints, and the content of the file."""

    def call(*words, main=check_data.main):
        code, stdout, stderr = command(main, *words, "--json", tmp_path / "x.json", "--overwrite")
        assert not stderr.strip(), stderr
        return code, stdout, json.loads((tmp_path / "x.json").read_text())

    return call


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "Synthetic"])
def test_counts_of_every_layout(check, tmp_path, name):
    """Those of RGBNT201 are known, and a small copy of it differs from them."""
    splits = WRITERS[name](tmp_path / "data")
    config = ROOT / "configs" / name / "DeMo.yml"
    code, stdout, actual = check(*cli_args_for(tmp_path / "data", config=config, small=SMALL))
    distinct = set(chain(*splits.values()))
    for split, samples in {**splits, "all": distinct}.items():
        identities = {"train": TRAIN, "all": TRAIN + TEST}.get(split, TEST)
        expected = dict.fromkeys(("triplets", *MODALITIES), len(samples))
        expected |= {"identities": len(identities), "cameras": len(CAMERAS)}
        expected |= {"scenes": len(SCENES)} if name == "MSVR310" else {}
        assert actual["counts"][split] == expected
    assert (code, bool(actual["differences"])) == ((1, True) if name == "RGBNT201" else (0, False))
    assert ("expected counts: not known here" in stdout) == (name != "RGBNT201")


def test_synthetic_data_beside_a_real_set_do_not_count_for_it(tiny_root, tmp_path):
    WRITERS["RGBNT201"](tmp_path)
    shutil.copytree(tiny_root, tmp_path / "synthetic")
    for name, is_known in (("RGBNT201", True), ("Synthetic", False)):
        words = cli_args_for(tmp_path, "DATASETS.NAMES", name)
        assert bool(published_counts(load_cfg(CONFIG, words[2:]))) == is_known


def test_damaged_images_are_all_found_by_decoding(refusal, check, own_root):
    cut = sorted((own_root / "RGBNT201" / "test" / "TI").iterdir())[:2]
    for path in cut:
        path.write_bytes(path.read_bytes()[:-200])
    assert check(*cli_args_for(own_root))[0] == 0
    message = refusal(check_data.main, *cli_args_for(own_root), "--decode")
    assert message.startswith("2 of 240 images cannot be read") and all(
        message.count(str(path)) == 1 for path in cut
    )


def test_captions(check, refusal, shapes_root, tmp_path):
    words = seps_tiny.cli_args_for(shapes_root)
    code, stdout, actual = check(*words, "--decode", main=seps.check)
    sizes, captions = seps_tiny.SIZES, seps_tiny.CAPTIONS
    assert code == 0 and actual["decoded"] and "not known here" in stdout
    assert actual["counts"] == {
        split: {"images": count, "captions": captions * count, "long": count}
        for split, count in sizes.items()
    }
    (tmp_path / "shapes").mkdir()
    message = refusal(seps.check, *words, "DATASETS.ROOT_DIR", tmp_path)
    assert "_caps.txt is missing" in message
