"""Curves of a run: loss, accuracy, mAP and Rank-1 over the epochs."""

from pathlib import Path

from demo_sdtps.config import UserError
from demo_sdtps.config.load import StoredText
from demo_sdtps.evaluation.tables import METRICS, PATTERN_NAMES, evaluated_records, read_records
from demo_sdtps.modeling.checkpoints.loading import stored_config
from demo_sdtps.reports.figures import ink, plt, save
from demo_sdtps.reports.palette import NEUTRAL, PATTERNS
from demo_sdtps.training.output import LAST

IMAGE = "curves.png"


def evaluated_run(folder: Path) -> list[dict]:
    """The records of a run's metrics.json."""
    records = read_records(folder)
    if not evaluated_records(records):
        raise UserError(
            f"The run {folder} has no {METRICS} with evaluated epochs; train first, or give the OUTPUT_DIR of a "
            "training."
        )
    return records


def run_config(run: Path) -> StoredText:
    """The configuration of a finished run."""
    evaluated_run(run)
    return stored_config(run / LAST)


def draw_curves(records: list[dict], path: Path) -> Path:
    """Loss and accuracy on the left, mAP and Rank-1 per return pattern on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    trained = [record for record in records if None not in map(record.get, ("loss", "accuracy"))]
    epochs = [record["epoch"] for record in trained]
    left.plot(epochs, [record["loss"] for record in trained], color=ink(), marker=".")
    left.set(xlabel="epoch", ylabel="training loss (solid)", title="training")
    accuracy = left.twinx()
    accuracies = [100 * record["accuracy"] for record in trained]
    accuracy.plot(epochs, accuracies, "--", color=NEUTRAL, marker=".")
    accuracy.set_ylabel("training accuracy (%, dashed)", color=NEUTRAL)
    accuracy.set_ylim(0, 100)
    accuracy.grid(False)

    tested = evaluated_records(records)
    epochs = [record["epoch"] for record in tested]
    for pattern, colour in PATTERNS.items():
        for name, style in (("mAP", "-"), ("Rank-1", ":")):
            values = [100 * record["patterns"][str(pattern)][name] for record in tested]
            text = f"{name}, {PATTERN_NAMES[pattern]}"
            right.plot(epochs, values, style, color=colour, marker=".", label=text)
    right.set(xlabel="epoch", ylabel="%", ylim=(0, 100), title="test split, by return pattern")
    right.legend(fontsize=8)
    return save(figure, path)
