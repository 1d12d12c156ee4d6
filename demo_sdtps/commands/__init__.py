"""The command demo-sdtps: every command of users by its name."""

import sys
from importlib import import_module

from demo_sdtps import __version__
from demo_sdtps.commands.cli import print_lines, run
from demo_sdtps.config.common import COMMAND
from demo_sdtps.runtime.errors import UserError, nearest_name

COMMANDS = {
    "train": ("train", "train a model, and evaluate it as it learns"),
    "test": ("test", "evaluate a checkpoint: mAP and Rank-1/5/10"),
    "calibrate": ("search:calibrate", "fit the probability that two triplets show one identity"),
    "search": ("search", "find the images of a gallery that are most like a query"),
    "export": ("export:features", "write the features of a split as numpy arrays or Parquet"),
    "export onnx": ("export:onnx", "write the model as ONNX"),
    "export openvino": ("export:openvino", "write the model for OpenVINO"),
    "report": ("evaluate:report", "table and page of finished runs"),
    "analyse": ("evaluate:analyse", "the numbers behind an evaluation"),
    "draw tokens": ("evaluate:draw_tokens", "draw which patches token pruning and SDTPS keep"),
    "draw ranks": ("evaluate:draw_ranks", "draw rank lists"),
    "draw embedding": ("evaluate:draw_embedding", "draw the features as points"),
    "draw curves": ("evaluate:draw_curves", "draw the training curves of a run"),
    "flops": ("evaluate:flops", "parameters and multiply-accumulates of a model"),
    "slim-curve": ("evaluate:slim_curve", "mAP against operations, pruned without training"),
    "check": ("check_data", "counts of a data set beside the expected ones"),
    "convert": ("convert_checkpoint", "a checkpoint in DeMo's names, in ours, or as a backbone"),
}
"""By name: the module here, with the function that is not its `main`, and what it does; two words are one of a group."""


def call(name: str) -> None:
    """Call a command with the words of `sys.argv`."""
    module, _, function = COMMANDS[name][0].partition(":")
    getattr(import_module(f"{__name__}.{module}"), function or "main")()


def run_command(name: str) -> None:
    """Run a command, as its script does."""
    run(lambda: call(name))


def match_command(words: list[str]) -> str:
    """The command that the first words name, '' for none."""
    names = (" ".join(words[:count]) for count in (2, 1))
    return next((name for name in names if name in COMMANDS), "")


def dispatch() -> None:
    """Call the command that the first words name, as if it were started so."""
    words = sys.argv[1:]
    if name := match_command(words):
        sys.argv = [f"{COMMAND} {name}", *words[len(name.split()) :]]
        return call(name)
    if words == ["--version"]:
        return print_lines(__version__)
    first = words[:1] or ["--help"]
    group = [name for name in COMMANDS if first[0] in ("-h", "--help", name.split()[0])]
    if not group or words[1:2] not in ([], ["-h"], ["--help"]):
        command_words = " ".join(words[: 2 if group else 1])
        raise UserError(
            f"There is no command {command_words!r}{nearest_name(command_words, group or COMMANDS)}; "
            f"{COMMAND} --help lists all."
        )
    rows = (f"  {name:20}{COMMANDS[name][1]}" for name in group)
    print_lines(f"usage: {COMMAND} COMMAND …, where COMMAND --help explains each:", "", *rows)


def main() -> None:
    run(dispatch)
