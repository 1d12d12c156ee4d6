"""profile_flops.py against the published figures, and its counts against other counters of the same products."""

import re
import shlex

import pytest
import torch
from commands import CONFIG, ROOT, SMALL, checkpoint_file, cli_args_for
from torch.utils.flop_counter import FlopCounterMode

from demo_sdtps.commands import evaluate
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.fusion import HDM
from tests.reference.fusion import Fusion


def parse_rows(stdout):
    """The printed rows: what → numbers, the GMACs last."""
    rows = {}
    for line in stdout.splitlines()[2:]:
        words = line.split()
        numbers = [word for word in words if word.replace(",", "").replace(".", "").isdigit()]
        rows[" ".join(words[: -len(numbers)])] = [
            float(number.replace(",", "")) for number in numbers
        ]
    return rows


def products(call, *inputs):
    """Multiply-accumulates of the matrix products that a call runs, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        call(*inputs)
    return counter.get_total_flops() / 2


def random_tokens(width, count):
    return [
        {modality: torch.randn(1, *shape) for modality in MODALITIES}
        for shape in ((count, width), (width,))
    ]


@pytest.mark.slow
@pytest.mark.soak
def test_profile_of_the_published_model(command):
    """Spec 10, where HDM's attentions are counted as seven plain ones."""
    code, stdout, _ = command(
        evaluate.flops, "--config_file", ROOT / "configs" / "RGBNT201" / "DeMo.yml"
    )
    assert code == 0
    rows = parse_rows(stdout)
    *parts, total = rows.values()
    assert list(rows)[-1] == "total" and total[0] == sum(row[0] for row in parts) == 98_792_960
    assert sum(row[1] for row in parts) == pytest.approx(total[1], abs=5e-4)
    plain = products(Fusion(512).eval().decouple, *random_tokens(512, 128)) / 1e9
    assert total[1] - rows["HDM"][1] + plain == pytest.approx(35.1, rel=0.003)
    # the products of the shortcut, and beside them softmax and biases
    assert 1 <= rows["HDM"][1] * 1e9 / products(HDM(512).eval(), *random_tokens(512, 128)) < 1.05


def test_profile_needs_no_data_and_names_its_input(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = command(
        evaluate.flops, *cli_args_for("nowhere"), "--num_class", "9", "--camera_num", "3"
    )
    assert code == 0 and "32×16" in stdout and "9 classes, 3 cameras" in stdout
    model = make_model(load_cfg(CONFIG, SMALL), 9, 3)
    expected = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert f"{expected:,}" in stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_profile_of_a_checkpoint(success, refusal, tmp_path, caplog):
    """With its configuration, identities and cameras, no operator left out; other numbers and another model are refused."""
    words = cli_args_for("nowhere", "MODEL.HDM", "True")
    weight = checkpoint_file(tmp_path / "x.pth", load_cfg(CONFIG, words[2:]), classes=9, cameras=3)
    stdout = success(evaluate.flops, "--weight", weight)
    assert "Not counted" not in caplog.text
    sizes = ("--num_class", "9", "--camera_num", "3")
    assert stdout == success(evaluate.flops, *words, *sizes)
    assert stdout == success(evaluate.flops, *words, *sizes, "--weight", weight)
    for other in (("--num_class", "8"), ("MODEL.HDM", "False")):
        assert str(weight) in refusal(evaluate.flops, "--weight", weight, *other)
    assert "--weight" in refusal(evaluate.flops)


def test_the_share_of_the_dense_model_is_of_its_own_total(success):
    slim = shlex.split("MODEL.SLIM_SCORE saliency MODEL.SLIM_BLOCKS [0] MODEL.SLIM_KEEP [0.5]")
    totals = []
    for words in ([], slim):
        stdout = success(evaluate.flops, *cli_args_for("nowhere", *words))
        totals.append(parse_rows(stdout.partition("share of")[0])["total"][1])
        shares = re.findall(r"^share of the dense model's ([\d.]+) GMACs: ([\d.]+)%$", stdout, re.M)
    ((whole, share),) = shares
    assert float(whole) == totals[0] and totals[1] < totals[0]
    assert float(share) == pytest.approx(100 * totals[1] / totals[0], abs=0.05 + 5 / totals[0])
