"""The record of a measurement, and the report of it."""
import torch

from demo_sdtps.benchmarks.rows import Row, as_markdown
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.threads import cpu_cores
from demo_sdtps.training.record import command, commit, machine, versions


def about(device: torch.device, quick: bool) -> dict:
    """What a record of measurements on `device` begins with: command, commit, versions and machine."""
    return {"command": command(), **commit(), "versions": versions(device), "quick": quick,
            "machine": {**machine(device), "cores": cpu_cores(),
                        "bfloat16": choose_precision("auto", device) is torch.bfloat16}}


def headline(record: dict) -> str:
    """Command, machine and versions of a record."""
    made, what = record["versions"], record["machine"]
    half = "with" if what["bfloat16"] else "without"
    where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions" if what["device"] == "cpu" else what["name"]
    return (f"`{record['command']}` on {where}, {what['threads']} threads; "
            + ", ".join(f"{name} {version}" for name, version in made.items() if version) + ".")


def as_report(record: dict) -> str:
    """Record of --json as Markdown: command, machine and versions, and the table."""
    return f"{headline(record)}\n\n{as_markdown([Row(**row) for rows in record['parts'].values() for row in rows])}"
