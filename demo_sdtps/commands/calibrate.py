"""Fit the probability of the same identity, and thresholds: demo-sdtps calibrate --weight W"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.config.common import FALSE_ACCEPT_RATES
from demo_sdtps.datasets import SPLITS
from demo_sdtps.datasets.base import VALIDATION


def main() -> None:
    rates = ", ".join(f"{rate:g}" for rate in FALSE_ACCEPT_RATES)
    parser = flags.config_parser(
        "Fit, for each pair of sets of modalities, the probability that two triplets are of one identity, and the distances "
        f"that the shares {rates} of the pairs of different identities are within, and write them to NAME.calibration.json "
        "beside the checkpoint NAME.pth. Searches with the checkpoint then show the probability, and mark hits beyond the "
        "threshold as unknown. The identities must be ones that the model was not trained on: by default those that "
        "DATASETS.VALIDATION left out of the training."
    )
    which = "of labelled images; of another data set, by DATASETS.ROOT_DIR, any"
    cli.add_choice(parser, "--split", (VALIDATION, *SPLITS), VALIDATION, which)
    cli.add_switch(
        parser,
        "--test",
        "measure it on query and gallery too: the error of the probability, and what the thresholds accept",
    )
    cli.add_overwrite(parser)
    flags.add_skip_unreadable(parser)
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.datasets.unreadable import print_left_out
    from demo_sdtps.retrieval.calibrate import calibrate

    calibrate(arguments, cfg)
    print_left_out()
