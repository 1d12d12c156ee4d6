"""Profiling, help and keys: what the commands say without a run."""
import runpy
import sys

import pytest
import torch
from commands import CONFIG, ONE_LINE, ROOT, SCRIPTS, SMALL, TRUNK_WIDTH, words_for

import train_net
from config import MODALITIES, load_cfg
from modeling import make_model
from tools import profile_flops


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters", "gmacs"), [("Baseline", 87_988_224, 34.28), ("DeMo_SDTPS", 88_617_573, 34.33)])
def test_profile_of_the_published_models(command, name, parameters, gmacs):
    code, stdout, _ = command(profile_flops.main, "--config_file", ROOT / "configs" / "RGBNT201" / f"{name}.yml")
    total = stdout.splitlines()[-1].split()
    assert code == 0 and total[0] == "total"
    assert int(total[1].replace(",", "")) == parameters
    assert float(total[2]) == pytest.approx(gmacs, rel=0.005)
    parts = [line.split()[-2:] for line in stdout.splitlines()[2:-1]]
    assert sum(int(count.replace(",", "")) for count, _ in parts) == parameters
    assert sum(float(macs) for _, macs in parts) == pytest.approx(float(total[2]), abs=5e-4)


class Attention(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused

    def forward(self, query, key, value):
        if self.fused:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
        return (query @ key.transpose(-2, -1)).softmax(dim=-1) @ value


def test_fused_attention_counts_its_matrix_products():
    """(…, L, E)·(…, S, E) and weights·(…, S, V): the plain form counted by fvcore's own rules says the same."""
    from fvcore.nn import FlopCountAnalysis

    shapes = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)
    inputs = tuple(torch.randn(*shape) for shape in shapes)
    fused = FlopCountAnalysis(Attention(True), inputs)
    fused.set_op_handle("aten::scaled_dot_product_attention", profile_flops.attention_macs)
    plain = FlopCountAnalysis(Attention(False), inputs).unsupported_ops_warnings(False)
    assert fused.total() == plain.total() == 2 * 3 * (5 * 7 * 8 + 5 * 7 * 6)


def test_fused_attention_keeps_its_matrix_products_in_the_count():
    """Of the plain form's count only the softmax and the scaling of the queries are lost."""
    cfg = load_cfg(CONFIG, SMALL)
    model = make_model(cfg, 6, 4).eval()
    blocks = model.trunk.vit.blocks
    counts = {}
    for fused, plain_on in ((False, ("cpu",)), (True, ())):
        model.trunk.plain_attention_on = plain_on
        counts[fused] = profile_flops.count_macs(cfg, model)[""]
        assert all(block.attn.fused_attn is fused for block in blocks)
    tokens = 1 + 8 * 4
    softmax, scaling = blocks[0].attn.num_heads * tokens * tokens, tokens * TRUNK_WIDTH
    assert counts[False] - counts[True] == len(MODALITIES) * len(blocks) * (softmax + scaling)


def test_profile_needs_no_data_and_names_its_input(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = command(profile_flops.main, *words_for("nowhere"), "--num_class", "9", "--camera_num", "3")
    assert code == 0 and "32×16" in stdout and "9 classes, 3 cameras" in stdout
    model = make_model(load_cfg(CONFIG, SMALL), 9, 3)
    expected = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert f"{expected:,}" in stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(ROOT / "tools")  # as the interpreter does for a script
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    shown = capsys.readouterr()
    assert ended.value.code == 0 and not shown.err
    assert ("--run" if script == "tools/draw_curves.py" else "--config_file") in shown.out
    flags = {"train_net.py": "--overwrite", "test_net.py": "--weight", "tools/export_features.py": "--split",
             "tools/profile_flops.py": "--num_class", "tools/draw_ranks.py": "--queries", "tools/draw_tokens.py": "--samples"}
    assert flags.get(script, "--help") in shown.out


@pytest.mark.parametrize(("words", "names", "not_names"), [
    (["--keys", "SDTPS"], ["MODEL.USE_SDTPS = False", "MODEL.SDTPS_BETA = 0.25"], ["SOLVER.SEED"]),
    (["--keys", "sdtps"], ["MODEL.USE_SDTPS = False"], ["SOLVER.SEED"]),
    (["--keys"], ["MODEL.USE_SDTPS = False", "SOLVER.SEED = 1111", "OUTPUT_DIR = ''"], []),
])
def test_keys_are_printed(command, words, names, not_names):
    code, stdout, stderr = command(train_net.main, *words)
    assert code == 0 and not stderr
    assert all(name in stdout for name in names) and not any(name in stdout for name in not_names)


def test_keys_that_do_not_exist_are_told(command):
    code, stdout, stderr = command(train_net.main, "--keys", "BANANA")
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and "BANANA" in stderr


def test_negative_values_pass_the_command_line(command, tmp_path):
    for value in ("-1", "-0.5", "-1e-4"):
        _, _, stderr = command(train_net.main, *words_for(tmp_path, "SOLVER.BASE_LR", value))
        assert stderr.startswith(ONE_LINE + "SOLVER.BASE_LR") and "greater than 0" in stderr
