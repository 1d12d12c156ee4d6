"""The page of demo-sdtps report --html: one file with everything in it, which makes no request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import with_values
from demo_sdtps.config.load import flatten
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.images import parallel
from demo_sdtps.evaluation import tables
from demo_sdtps.evaluation.protocol import CrossModal, TestData, exclude_key
from demo_sdtps.modeling import DeMo
from demo_sdtps.reports.analysis import NEAREST
from demo_sdtps.reports.page import render, thumbnail
from demo_sdtps.runtime.files import atomic_write

EXTRA_PACKAGES = {"jinja2": "jinja2", "plotly": "plotly", "sklearn": "scikit-learn"}
SHOWN = ("queries", "rank_lists", "worst_queries", "identities", "distances", "scatter")
"""Of an analysis, what the page's scripts draw."""


@dataclass
class Run:
    """A finished run: its configuration, the records of its training, model, queries and data."""

    cfg: CfgNode
    records: list[dict[str, Any]]
    model: DeMo
    queries: list[Sample]
    data: TestData
    # of the last checkpoint on its own test split, once evaluated
    record: tables.Record = field(default_factory=dict)

    @property
    def test_split(self) -> str:
        """What it is evaluated on."""
        named = named_by_folder(self.cfg)
        return f"{tables.data_caption(named, self.data)}{tables.options(self.cfg)}"


def write_page(
    path: Path,
    compared: Sequence[Run],
    analysis: Mapping[str, Any],
    untrained: tables.Record | None,
    cross_modal: CrossModal,
    thumbnails: int,
) -> None:
    """Write the page of what `analyse` returns, with the images of at most `thumbnails` triplets. `compared` are the run, and
    those that it is compared with, `untrained` is the record of the model before training, `cross_modal` the result of
    `rank_sets`."""
    from plotly.offline import get_plotlyjs

    cfg, model, data = compared[0].cfg, compared[0].model, compared[0].data
    runs = {run.cfg.OUTPUT_DIR: run for run in compared}
    modalities, indices = cfg.MODEL.MODALITIES, page_samples(analysis)
    samples = {index: data.samples[index] for index in indices}
    shown = {index: samples[index] for index in indices[:thumbnails]}
    images = parallel(
        lambda sample: thumbnail(cfg, sample, modalities),
        list(shown.values()),
        "making thumbnails",
        "triplet",
    )
    content = {
        **{name: analysis[name] for name in SHOWN},
        "runs": [{"name": name, "records": run.records} for name, run in runs.items()],
        "patterns": list(tables.PATTERN_NAMES.values()),
        "samples": {index: sample_labels(cfg, sample) for index, sample in samples.items()},
        "thumbnails": dict(zip(shown, images, strict=True)),
    }
    page = render(
        "report.html",
        cfg,
        model,
        shown,
        modalities,
        content,
        plotly=get_plotlyjs(),
        files=False,
        title=Path(cfg.OUTPUT_DIR).resolve().name,
        caption=tables.reid_caption(named_by_folder(cfg), data),
        settings=named_by_folder(cfg).dump(),
        data=data,
        analysis=analysis,
        record=analysis["cases"][analysis["missing"]],
        cameras=[camera + 1 for camera in analysis["camera_matrix"]["cameras"]],
        patterns={str(pattern): name for pattern, name in tables.PATTERN_NAMES.items()},
        pattern=str(cfg.TEST.RETURN_PATTERN),
        missing=tables.missing_rows(analysis["cases"]),
        runs=runs,
        differing=differing([run.cfg for run in runs.values()]),
        untrained=untrained,
        cross_modal=cross_modal,
        tables=tables,
        key=exclude_key(cfg),
        nearest=NEAREST,
    )
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def named_by_folder(cfg: CfgNode) -> CfgNode:
    """`cfg` with the name of the data's folder in place of its path, as the page may be shown on another machine."""
    name = Path(cfg.DATASETS.ROOT_DIR).resolve().name
    return with_values(cfg, {"DATASETS.ROOT_DIR": name})


def differing(cfgs: Sequence[CfgNode]) -> dict[str, list[object]]:
    """The keys in which the configurations of runs differ, with the value of each."""
    first, *others = map(flatten, cfgs)
    shown = [flatten(named_by_folder(cfg)) for cfg in cfgs]
    return {
        key: [values[key] for values in shown]
        for key, value in sorted(first.items())
        if key not in ("OUTPUT_DIR", "TEST.WEIGHT") and any(other[key] != value for other in others)
    }


def page_samples(analysis: Mapping[str, Any]) -> list[int]:
    """Indices of the samples in the page, the most needed first: the queries, their nearest, those of the lowest average
    precision first, and the points."""

    def precision(rank_list: Mapping[str, Any]) -> float:
        value = analysis["queries"][rank_list["query"]]["average_precision"]
        return 2.0 if value is None else value  # without a match, last

    lists = sorted(analysis["rank_lists"], key=precision)
    queries = [analysis["queries"][one["query"]]["sample"] for one in lists]
    nearest = [hit["sample"] for one in lists for hit in one["nearest"]]
    return list(dict.fromkeys([*queries, *nearest, *analysis["scatter"]["samples"]]))


def sample_labels(cfg: CfgNode, sample: Sample) -> dict[str, object]:
    """What the page says of a sample; cameras from 1, as file names have them."""
    labels = {"identity": sample.identity, "camera": sample.camera + 1}
    if exclude_key(cfg) == "scene":
        labels["scene"] = sample.scene
    return {**labels, "name": Path(sample.files[0]).name}
