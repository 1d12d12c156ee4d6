"""A plug-in of pytest that computes the golden cases on a device, for tools/gpu_check.py.

    GOLDEN_DEVICE=cuda GOLDEN_REPORT=X.jsonl PYTHONPATH=tests python -m pytest -p golden_on_device -k golden FILES

The tests and their tolerances stay as they are: the cases' tensors come on the device, and new tensors are made there. The
report has a line for each test: its name, whether it passed, its error, and the largest share of a tolerance that one of its
relative errors took.
"""
import json
import os
from collections.abc import Iterator

import golden_cases
import pytest
import torch

DEVICE, REPORT = torch.device(os.environ["GOLDEN_DEVICE"]), os.environ["GOLDEN_REPORT"]
OF_REFERENCES = "agree"  # in the names of tests of the slow references, which never run on a GPU
OF_NUMBERS = "schedule"  # in that of the learning rates: no tensors, and timm draws their noise by a generator of the CPU

load_case, seeded_input, relative_error = golden_cases.load_case, golden_cases.seeded_input, golden_cases.relative_error
shares: list[float] = []


class Measured(float):
    """A relative error that notes its share of the tolerance that it is compared with."""

    def __lt__(self, tolerance: float) -> bool:
        shares.append(float(self) / tolerance)
        return super().__lt__(tolerance)


def load_case_there(name: str):
    case = load_case(name)
    case.arrays, case.weights = ({key: tensor.to(DEVICE) for key, tensor in tensors.items()}
                                 for tensors in (case.arrays, case.weights))
    return case


# Before the tests import them.
golden_cases.load_case = load_case_there
golden_cases.seeded_input = lambda *arguments: seeded_input(*arguments).to(DEVICE)
golden_cases.relative_error = lambda *tensors: Measured(relative_error(*tensors))
# float32 throughout: by default convolutions may be in TF32.
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if OF_REFERENCES not in item.name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    shares.clear()
    with torch.device("cpu") if OF_NUMBERS in item.name else DEVICE:
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        note(report, max(shares, default=None))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:  # a file that cannot be imported
        note(report, None)


def note(report: pytest.TestReport | pytest.CollectReport, share: float | None) -> None:
    error = "" if report.passed else str(report.longrepr).strip().splitlines()[-1]
    with open(REPORT, "a", encoding="utf-8") as file:
        file.write(json.dumps({"name": report.nodeid.rpartition("/")[2], "outcome": report.outcome, "error": error,
                               "share": share}) + "\n")
