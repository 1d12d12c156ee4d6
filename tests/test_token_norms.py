"""tools/token_norms.py: norms of the patch tokens, and what tokens of large norm do to `distinctness`."""
import json
import statistics

import pytest
import torch
from commands import CONFIG, ONE_LINE, checkpoint_file, cli_args_for
from numeric import generator, tolerance

from demo_sdtps.config import load_cfg
from demo_sdtps.engine.evaluation.selection import average_precision
from demo_sdtps.tools import token_norms


@pytest.mark.parametrize("seed", range(3))
def test_measures_like_the_slow_ones(seed):
    draws = generator(seed)
    tokens = torch.randn(2, 101, 5, generator=draws)
    tokens[:, :3] *= 20
    on_person = torch.rand(2, 101, generator=draws) < 0.4
    on_person[:, 0], on_person[:, 1] = False, True
    found = token_norms.measures(tokens, on_person)
    for image, (vectors, mask) in enumerate(zip(tokens.tolist(), on_person.tolist(), strict=True)):
        norms = [sum(value * value for value in vector) ** 0.5 for vector in vectors]
        middle = statistics.median(norms)
        high = [norm > 2 * middle for norm in norms]
        person, background = ([norm for norm, of in zip(norms, mask, strict=True) if of == wanted] for wanted in (True, False))
        expected = {"median, person": statistics.median_low(person) / middle,
                    "median, background": statistics.median_low(background) / middle,
                    "largest": max(norms) / middle, "high": sum(high) / 101,
                    "high, background": sum(h and not of for h, of in zip(high, mask, strict=True)) / 101}
        limit = sorted(norms)[-2]  # two of 101 are left out
        weights = {"distinctness": [1] * 101, "without the largest": [norm < limit for norm in norms],
                   "of equal norm": [1 / norm for norm in norms]}
        roundings = tolerance(101, 5, 5)
        allowed = {name: roundings * value for name, value in expected.items()}
        for name, weight in weights.items():
            mean = [sum(w * vector[c] for w, vector in zip(weight, vectors, strict=True)) for c in range(5)]
            cosines = [sum(a * b for a, b in zip(vector, mean, strict=True)) / norm / sum(a * a for a in mean) ** 0.5
                       for vector, norm in zip(vectors, norms, strict=True)]
            scores = 1 - torch.tensor([cosines], dtype=torch.double)
            expected[f"AP {name}"] = average_precision(scores, on_person[image:image + 1])[0].item()
            # Two neighbours in the order that differ by roundings may change places, worth half of the share of one patch.
            equal = scores.sort().values.diff().lt(roundings).sum().item()
            allowed[f"AP {name}"] = 1e-12 + equal / 2 / sum(mask)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name][image].item() == pytest.approx(value, rel=0, abs=allowed[name]), name


def test_every_block_is_measured(tiny_root, tmp_path, command):
    """Also of a checkpoint with slimming, which is not asked."""
    more = ("MODEL.USE_SDTPS", False, "MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]", "INPUT.JOINT_AUGMENTATION", True)
    weights = checkpoint_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root, *more)[2:]))
    code, stdout, stderr = command(token_norms.main, "--weight", weights, "--json", tmp_path / "x.json")
    assert code == 0, stderr
    blocks = json.loads((tmp_path / "x.json").read_text())["blocks"]
    assert len(blocks) == 7 and stdout.splitlines()[1].split()[-2:] == ["block", "6"]
    assert all(one["largest"] >= 1 and 0 <= one["high, background"] <= one["high"] <= 1 for one in blocks)
    code, _, stderr = command(token_norms.main, "--weight", weights, "--json", tmp_path / "x.json")
    assert code == 2 and stderr.startswith(ONE_LINE) and "--overwrite" in stderr
