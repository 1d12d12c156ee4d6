"""How well calibrations hold on other identities and cameras.

The identities that a model was not trained on, of the splits validation, query and gallery, are split ten times at random:
as many as validation has are calibrated on, the others measured, at a false acceptance of 1 %. Return pattern 3, mean over the
splits. "Another camera": that of one side of the measured pairs is in no pair of the fit.
"""

from collections import defaultdict
from statistics import mean

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config.common import FALSE_ACCEPT
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.base import SPLITS, VALIDATION
from demo_sdtps.retrieval.calibrate import labelled_distances
from demo_sdtps.retrieval.calibration import fit, quality
from demo_sdtps.retrieval.extractor import make_extractor

SPLIT_COUNT, COMPLETE = 10, "RGB+NI+TI, RGB+NI+TI"


def measure(cfg: CfgNode) -> dict[str, dict[str, float]]:
    splits = read_splits(cfg, (VALIDATION, *SPLITS[1:]))
    samples = [*dict.fromkeys(sample for members in splits.values() for sample in members)]
    count = len({sample.identity for sample in splits[VALIDATION]})
    values: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for block in labelled_distances(cfg, make_extractor(cfg), samples):
        if block.pattern != 3:
            continue
        kind = "complete" if block.sets == COMPLETE else "other sets"
        draw = np.random.default_rng(0)
        for _ in range(SPLIT_COUNT):
            chosen = draw.permutation(np.unique(block.identities))[:count]
            fitted_on = [np.isin(side, chosen) for side in block.identities]
            other_identities = [~side for side in fitted_on]
            camera = draw.choice(np.unique(block.cameras))
            by_others = [side != camera for side in block.cameras]
            cases = {
                kind: (fitted_on, other_identities),
                f"{kind}, another camera": (
                    [a & b for a, b in zip(fitted_on, by_others, strict=True)],
                    [other_identities[0] & ~by_others[0], other_identities[1]],
                ),
            }
            for name, (places, others) in cases.items():
                measured = quality(fit(block.pairs(*places)), block.pairs(*others))
                false, true = measured["accepted"][str(FALSE_ACCEPT)]
                is_near = FALSE_ACCEPT / 2 <= false <= FALSE_ACCEPT * 2
                columns = {"error": measured["error"], "false": false}
                columns |= {"false within 0.5 to 2": is_near, "true": true}
                for what, value in columns.items():
                    values[name][what].append(value)
                values[name][block.sets].append(false)
    content = {}
    for name, columns in values.items():
        sets = [columns.pop(one) for one in [*columns] if ", " in one]
        content[name] = {what: mean(numbers) for what, numbers in columns.items()}
        content[name]["false of the worst sets"] = max(map(mean, sets))
    return content
