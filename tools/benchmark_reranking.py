"""Time k-reciprocal re-ranking: beside the plain loops of tests/reference, and at the size of RGBNT100's test split.

    python tools/benchmark_reranking.py
"""
import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from config import UserError
from config.cli import positive_int, run
from config.progress import progress
from engine.reranking import k_reciprocal

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from reference import reranking as plain

GALLERY_PER_QUERY = 5  # as in RGBNT100


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description="Seconds and memory of k-reciprocal re-ranking as the evaluation does it, on random features around a "
                    "centre per identity: few samples beside the plain loops of tests/reference in the same run, then as "
                    "many as RGBNT100 tests on.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--samples", type=positive_int, default=400, metavar="N",
                      help=f"samples beside the loops, {GALLERY_PER_QUERY} of the gallery to a query")
    made.add_argument("--queries", type=positive_int, default=1715, metavar="N", help="queries of the large case")
    made.add_argument("--gallery", type=positive_int, default=8575, metavar="N", help="gallery samples of the large case")
    made.add_argument("--identities", type=positive_int, default=50, metavar="N", help="identities, equally frequent")
    made.add_argument("--width", type=positive_int, default=512, metavar="D", help="length of a feature")
    made.add_argument("--spread", type=float, default=2.5, metavar="X",
                      help="length of what is a sample's own, where an identity's centre has length 1; with 2.5 the large "
                           "case has an mAP of 0.8 before re-ranking")
    made.add_argument("--repeats", type=positive_int, default=3, metavar="N", help="rounds; the median counts")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu",
                      help="where the features lie; the loops are Python's own")
    return made


def main() -> None:
    arguments = parser().parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda, but torch finds no CUDA device on this machine; use cpu.")
    if arguments.samples < 2:
        raise UserError("--samples must be at least 2: a query and a gallery.")
    queries = max(1, arguments.samples // (1 + GALLERY_PER_QUERY))
    few = clustered(arguments, queries, arguments.samples - queries)
    many = clustered(arguments, arguments.queries, arguments.gallery)
    lists = [side.tolist() for side in few]

    k_reciprocal(*few)  # warms up
    before = peak_memory(arguments.device)
    large = [seconds(arguments.device, k_reciprocal, many) for _ in progress(range(arguments.repeats), "many", unit="round")]
    memory = peak_memory(arguments.device) - before
    ours, loops = [], []
    # Taken in turns, so that a busy moment of the machine falls on both.
    for _ in progress(range(arguments.repeats), "few", unit="round"):
        ours.append(seconds(arguments.device, k_reciprocal, few))
        loops.append(seconds(arguments.device, plain.k_reciprocal, lists))

    print(f"{'queries':>9}{'gallery':>9}{'ours s':>10}{'loops s':>10}{'loops / ours':>14}{'peak MiB':>10}")
    fast, slow = statistics.median(ours), statistics.median(loops)
    print(f"{len(few[0]):9}{len(few[1]):9}{fast:10.3f}{slow:10.3f}{slow / fast:14.0f}")
    print(f"{len(many[0]):9}{len(many[1]):9}{statistics.median(large):10.3f}{'':24}{memory / 2**20:10.0f}")


def clustered(arguments: argparse.Namespace, queries: int, gallery: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of queries and gallery: each identity's centre with noise of length --spread around it."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(arguments.identities, arguments.width, generator=generator), dim=1)
    noise = torch.randn(queries + gallery, arguments.width, generator=generator) / arguments.width**0.5
    identity = torch.cat([torch.arange(queries), torch.arange(gallery)]) % arguments.identities
    return (centres[identity] + arguments.spread * noise).to(arguments.device).split([queries, gallery])


def seconds(device: str, function: Callable, sides: Sequence) -> float:
    started = time.perf_counter()
    function(*sides)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def peak_memory(device: str) -> int:
    """The most bytes in use so far: of the GPU, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    run(main)
