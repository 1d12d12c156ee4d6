"""Where and how measurements were made, for the records of benchmarks/run.py and tools/gpu_check.py."""
import torch

from demo_sdtps.config.threads import cpu_cores
from demo_sdtps.engine.run.record import command, commit, machine, versions
from demo_sdtps.engine.runtime import choose_precision


def about(device: torch.device, quick: bool) -> dict:
    """What a record of measurements on `device` begins with: command, commit, versions and machine."""
    return {"command": command(), **commit(), "versions": versions(device), "quick": quick,
            "machine": {**machine(device), "cores": cpu_cores(), "bfloat16": choose_precision("auto", device) is not None}}


def headline(record: dict) -> str:
    """Command, machine and versions of a record."""
    made, what = record["versions"], record["machine"]
    half = "with" if what["bfloat16"] else "without"
    where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions" if what["device"] == "cpu" else what["name"]
    return (f"`{record['command']}` on {where}, {what['threads']} threads; "
            + ", ".join(f"{name} {version}" for name, version in made.items() if version) + ".")
