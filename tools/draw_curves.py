"""Draw the training curves of a run: python tools/draw_curves.py --run runs/demo"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import add_output, check_outputs, print_lines, run
from demo_sdtps.evaluation.tables import METRICS, PATTERN_NAMES, evaluated, read_records
from demo_sdtps.reports.figures import plt, save

IMAGE = "curves.png"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw loss, accuracy, mAP and Rank-1 over the epochs of a run.")
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="OUTPUT_DIR of a training")
    add_output(parser, "--output", ".png", help=f"default: DIR/{IMAGE}")
    arguments = parser.parse_args()
    arguments.output = arguments.output or arguments.run / IMAGE
    check_outputs(arguments, [arguments.run / METRICS])
    print_lines(draw_curves(evaluated_run(arguments.run), arguments.output))


def evaluated_run(folder: Path) -> list[dict]:
    """The records of a run's metrics.json. Raises `UserError` where no epoch was evaluated."""
    records = read_records(folder)
    if not evaluated(records):
        raise UserError(f"The run {folder} has no {METRICS} with evaluated epochs; train first, or give the OUTPUT_DIR of a "
                        "training.")
    return records


def draw_curves(records: list[dict], path: Path) -> Path:
    """Loss and accuracy on the left, mAP and Rank-1 per return pattern on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    trained = [record for record in records if "loss" in record]
    left.plot([r["epoch"] for r in trained], [r["loss"] for r in trained], color="black", marker=".")
    left.set(xlabel="epoch", ylabel="training loss", title="training")
    accuracy = left.twinx()
    accuracy.plot([r["epoch"] for r in trained], [100 * r["accuracy"] for r in trained], color="tab:orange", marker=".")
    accuracy.set_ylabel("training accuracy (%)", color="tab:orange")
    accuracy.set_ylim(0, 100)

    tested = evaluated(records)
    epochs = [record["epoch"] for record in tested]
    for pattern, colour in zip(RETURN_PATTERNS, ("tab:blue", "tab:green", "tab:red"), strict=True):
        for name, style in (("mAP", "-"), ("Rank-1", ":")):
            values = [100 * record["patterns"][str(pattern)][name] for record in tested]
            right.plot(epochs, values, style, color=colour, marker=".", label=f"{name}, {PATTERN_NAMES[pattern]}")
    right.set(xlabel="epoch", ylabel="%", ylim=(0, 100), title="test split, by return pattern")
    right.legend(fontsize=8)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    return save(figure, path)


if __name__ == "__main__":
    run(main)
