"""The page of tools/report.py --html: one file with everything in it, which makes no request."""

import base64
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import flat
from demo_sdtps.datasets import Sample
from demo_sdtps.evaluation.cross_modal import CrossModal
from demo_sdtps.evaluation.protocol import TestData, exclude_key
from demo_sdtps.evaluation.tables import (
    MEASURES,
    PATTERN_NAMES,
    Record,
    distance_name,
    evaluated,
    missing_rows,
    options,
    reid_caption,
)
from demo_sdtps.modeling import DeMo
from demo_sdtps.reports.analysis import (
    NEAREST,
    Analysis,
    analysis_case,
    camera_rows,
    finite_or_none,
)
from demo_sdtps.reports.figures import images
from demo_sdtps.reports.palette import AS_DATA
from demo_sdtps.reports.tokens import description, patch_grids
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.output import CONFIG

EXTRA_PACKAGES = {"jinja2": "jinja2", "plotly": "plotly", "sklearn": "scikit-learn"}
TEMPLATES = Path(__file__).resolve().parent / "templates"
SCRIPTS = ("report.js", "report_ranks.js", "report_plots.js")
SECTIONS = {
    "results": "Results",
    "cross-modal": "Any modality against any",
    "comparison": "Comparison",
    "curves": "Training curves",
    "cameras": "Cameras",
    "distances": "Distances",
    "identities": "Identities",
    "features": "Features",
    "worst": "Worst queries",
    "ranks": "Rank lists",
    "settings": "Configuration",
}
# of a thumbnail: the longer side of each image in pixels, and JPEG's quality
SIDE, QUALITY = (128, 80)


def write_page(
    path: Path,
    cfg: CfgNode,
    model: DeMo,
    data: TestData,
    analysis: Analysis,
    records: list[dict[str, Any]],
    untrained: Record | None,
    cross_modal: CrossModal,
    thumbnails: int,
    others: Mapping[str, list[dict[str, Any]]] | None = None,
) -> Path:
    """Write the page of an analysed evaluation, with the images of at most `thumbnails` triplets. `records` are the run's,
    `untrained` is the record of the model before training, `cross_modal` the result of `rank_sets`, `others` are the
    records of further runs by OUTPUT_DIR."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    runs = {cfg.OUTPUT_DIR: records, **(others or {})}
    wanted = page_samples(data, analysis)
    samples = [data.samples[index] for index in wanted]
    kept = token_images(cfg, model, samples[:thumbnails]) if model.sdtps or model.slimming else None
    content = {
        "modalities": cfg.MODEL.MODALITIES,
        "stacked": stack_images(cfg),
        "kept": kept,
        "palette": AS_DATA,
        "runs": [{"name": name, "records": run_records} for name, run_records in runs.items()],
        "patterns": list(PATTERN_NAMES.values()),
        "samples": [sample_labels(cfg, sample) for sample in samples],
        "thumbnails": make_thumbnails(cfg, samples[:thumbnails]),
        **results(data, analysis, {index: place for place, index in enumerate(wanted)}),
    }
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    page = templates.get_template("report.html").render(
        title=Path(cfg.OUTPUT_DIR).resolve().name,
        caption=reid_caption(cfg, data),
        runs={name: evaluated(run_records)[-1]["patterns"] for name, run_records in runs.items()},
        differing=differing(list(runs)) if others else {},
        sections={name: text for name, text in SECTIONS.items() if others or name != "comparison"},
        patterns={str(pattern): name for pattern, name in PATTERN_NAMES.items()},
        pattern=str(cfg.TEST.RETURN_PATTERN),
        measures=MEASURES,
        record=analysis.records[analysis_case(cfg)],
        untrained=untrained,
        options=options(cfg),
        missing=missing_rows(analysis.records),
        matched=data.matched,
        failures=int((analysis.scores.first_match > 1).sum()),
        left_out=omission_notes(data, analysis, len(samples), thumbnails),
        cross_modal_distance=cfg.TEST.CROSS_MODAL_DISTANCE,
        cross_modal={
            measure: {name: row.values() for name, row in rows.items()}
            for measure, rows in cross_modal.items()
        },
        cameras={
            camera + 1: row
            for camera, row in zip(analysis.cameras.cameras, camera_rows(analysis), strict=True)
        },
        key=exclude_key(cfg),
        identities=analysis.identities,
        distance=distance_name(cfg),
        worst=len(analysis.worst),
        nearest=NEAREST,
        settings=cfg.dump(),
        content=content,
        style=source("report.css"),
        scripts=[get_plotlyjs(), *map(source, SCRIPTS)],
    )
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def differing(runs: Sequence[str]) -> dict[str, list[object]]:
    """The keys in which the configurations of runs differ, with the value of each."""
    first, *others = (flat(load_cfg(Path(run) / CONFIG)) for run in runs)
    return {
        key: [value, *(other[key] for other in others)]
        for key, value in first.items()
        if key != "OUTPUT_DIR" and any(other[key] != value for other in others)
    }


def source(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def page_samples(data: TestData, analysis: Analysis) -> list[int]:
    """Indices of the samples in the page, the most needed first: the queries, their nearest, those of the lowest average
    precision first, and the points."""
    order = analysis.scores.average_precision.argsort(kind="stable").tolist()
    queries = [query for query in order if query in analysis.rank_lists]
    nearest = [sample for query in queries for sample, *_ in analysis.rank_lists[query]]
    return list(dict.fromkeys([*data.query[queries].tolist(), *nearest, *analysis.points]))


def omission_notes(data: TestData, analysis: Analysis, samples: int, thumbnails: int) -> list[str]:
    """What the page leaves out, as sentences."""
    bounds = (
        (len(analysis.rank_lists), len(data.query), "queries have a rank list", "--queries"),
        (len(analysis.points), len(data.samples), "samples are in the scatter plot", "--points"),
        (
            min(samples, thumbnails),
            samples,
            "triplets of the page are shown with their images",
            "--thumbnails",
        ),
    )
    return [
        f"{shown:,} of {total:,} {what} ({flag})."
        for shown, total, what, flag in bounds
        if shown < total
    ]


def sample_labels(cfg: CfgNode, sample: Sample) -> dict[str, object]:
    """What the page says of a sample; cameras from 1, as file names have them."""
    where = {"scene": sample.scene} if exclude_key(cfg) == "scene" else {}
    return {
        "identity": sample.identity,
        "camera": sample.camera + 1,
        **where,
        "name": Path(sample.files[0]).name,
    }


def results(data: TestData, analysis: Analysis, place: dict[int, int]) -> dict[str, object]:
    """The numbers of the plots and the rank lists; samples by their `place` in the page."""
    average, first = (values.tolist() for values in analysis.scores)
    queries = [
        {
            "sample": place[int(data.query[query])],
            "ap": finite_or_none(average[query]),
            "first": first[query],
            "nearest": [
                (place[sample], distance, is_match) for sample, distance, is_match in nearest
            ],
        }
        for query, nearest in analysis.rank_lists.items()
    ]
    order = {query: number for number, query in enumerate(analysis.rank_lists)}
    return {
        "queries": queries,
        "worst": [order[query] for query in analysis.worst],
        "identities": [score._asdict() for score in analysis.identities],
        "distances": {
            name: values.tolist() for name, values in analysis.distances._asdict().items()
        },
        "scatter": {
            "samples": [place[point] for point in analysis.points],
            "places": {name: places.tolist() for name, places in analysis.embeddings.items()},
        },
    }


def stack_images(cfg: CfgNode) -> bool:
    """Whether a thumbnail has the images of its modalities one above the other: wide ones."""
    height, width = cfg.INPUT.SIZE_TEST
    return width > height


def make_thumbnails(cfg: CfgNode, samples: list[Sample]) -> list[str]:
    """The images of each triplet as a single JPEG, in base64."""

    def encode(sample: Sample) -> str:
        triplet = np.concatenate(images(cfg, sample), axis=0 if stack_images(cfg) else 1)
        ratio = min(1, SIDE / max(cfg.INPUT.SIZE_TEST))
        size = [max(1, round(ratio * length)) for length in triplet.shape[1::-1]]
        file = io.BytesIO()
        Image.fromarray(triplet).resize((size[0], size[1])).save(file, "JPEG", quality=QUALITY)
        return base64.b64encode(file.getvalue()).decode()

    with ThreadPoolExecutor() as pool:
        return list(
            progress(pool.map(encode, samples), "making thumbnails", len(samples), unit="triplet")
        )


def token_images(cfg: CfgNode, model: DeMo, samples: list[Sample]) -> dict[str, Any]:
    """The kept patches of every stage and SDTPS, by its name: a list per sample of bits (modality, row, column), packed
    and in base64."""
    size = cfg.TEST.IMS_PER_BATCH
    bits: dict[str, list[str]] = {}
    said = ""
    for start in progress(range(0, len(samples), size), "kept patches", unit="batch"):
        grids = patch_grids(cfg, model, samples[start : start + size])
        said = said or description(cfg, model, grids)
        for name, by_modality in grids.items():
            # of a missing modality
            nothing = np.zeros(
                (len(samples[start : start + size]), *model.backbone.grid_size), bool
            )
            stack = np.stack(
                [
                    by_modality[modality][:, 0].numpy() > 0 if modality in by_modality else nothing
                    for modality in cfg.MODEL.MODALITIES
                ],
                axis=1,
            )
            packed = np.packbits(stack.reshape(len(stack), -1), axis=1)
            bits.setdefault(name, []).extend(
                base64.b64encode(row.tobytes()).decode() for row in packed
            )
    rows, columns = model.backbone.grid_size
    return {"rows": rows, "columns": columns, "bits": bits, "description": said}
