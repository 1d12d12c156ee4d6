"""The demo's figures beside those of other runs: python -m tools.demo_figures --run runs/demo"""

import argparse

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import add_path, print_lines, read_arguments, run


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Print the mAP of `make demo` beside the range in which that of another seed lies."
    )
    add_path(parser, "--run", "DIR", "OUTPUT_DIR of make demo")
    arguments = read_arguments(parser)
    from demo_sdtps.evaluation.tables import read_records
    from tools.pages import demo_ranges

    records = read_records(arguments.run)
    if not records or "patterns" not in records[-1]:
        raise UserError(
            f"{arguments.run} holds no finished run (no metrics.json with an evaluated last epoch); run make demo, "
            "or give the OUTPUT_DIR of another run."
        )
    patterns = records[-1]["patterns"]
    figures = " / ".join(f"{100 * patterns[str(key)]['mAP']:.1f}" for key in RETURN_PATTERNS)
    limits = " / ".join("{:.1f} to {:.1f}".format(*limits) for _, *limits in demo_ranges().values())
    print_lines(
        f"mAP of original / enhanced / both: {figures}; with other seeds: {limits} (95 % of them)"
    )


if __name__ == "__main__":
    run(main)
