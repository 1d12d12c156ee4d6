"""The files of a checkout on which the results of a study depend, and their hash."""

import hashlib
from pathlib import Path

from demo_sdtps.training.output import git_output

ROOMS = (
    "commands",
    "config",
    "datasets",
    "evaluation",
    "modeling",
    "runtime",
    "training",
)
SOURCES = (
    "studies/baselines.py",
    "synthetic",
    "vit_slim",
    *(f"demo_sdtps/{name}" for name in ROOMS),
)
"""Pathspecs of git."""


def source_tree(root: Path) -> tuple[str | None, list[str]]:
    """The SHA-1 of what `git ls-files -s` says of the SOURCES of a checkout, None where git knows none; and their changes."""
    files = git_output(root, "ls-files", "-s", "--", *SOURCES)
    changes = git_output(root, "status", "--porcelain", "--", *SOURCES)
    if not files or changes is None:
        return None, []
    return hashlib.sha1(files.encode()).hexdigest(), changes.splitlines()
