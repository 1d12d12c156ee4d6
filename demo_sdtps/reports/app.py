"""A web application for search in own images, which reaches for nothing elsewhere: demo-sdtps app (docs/search.md)."""

import argparse
import base64
import html
import os
import socket
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image
from torchvision.transforms.v2.functional import to_pil_image
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import TOP
from demo_sdtps.config.ranges import read_ranges
from demo_sdtps.datasets.base import FORMATS, GALLERY
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import decode, decode_triplet
from demo_sdtps.datasets.unreadable import omissions
from demo_sdtps.evaluation.extraction import prepare_evaluation
from demo_sdtps.reports.figures import dark, spread
from demo_sdtps.reports.search_page import MOST_HITS, image_config, search_page, write_hits
from demo_sdtps.reports.tokens import draw_tokens
from demo_sdtps.retrieval.extractor import Extractor
from demo_sdtps.retrieval.load import open_reid
from demo_sdtps.retrieval.reid import Reid
from demo_sdtps.retrieval.search import read_images, search
from demo_sdtps.runtime.errors import check_extra

FRAME = '<iframe title="hits" srcdoc="{}" scrolling="no" style="width: 100%; border: 0"></iframe>'
"""As high as its page, which search.js sees to."""
NOTHING = "<p>The hits come here.</p>"
PICTURE = (
    "<h3>Scores of the patches</h3><picture><source media='(prefers-color-scheme: dark)' srcset='{1}'>"
    "<img src='{0}' alt='scores and kept patches of the query' style='max-width: 100%'></picture>"
)
EXPLANATION = (
    "Drop one image or more of a person or vehicle ({1}), or take an example: the nearest of the gallery's {0} come "
    "below. A click enlarges them, and *Kept patches* covers what the model drops. Nothing leaves this machine."
)
EXAMPLES = 3
SERVED = "/gradio_api/file="


def serve(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Bring the index of --gallery up to date, and serve until Ctrl-C."""
    prepare_evaluation(cfg)
    packages = {"gradio": "gradio", "lancedb": "lancedb", "jinja2": "jinja2"}
    check_extra("demo-sdtps app", "app", packages)
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((arguments.host, arguments.port))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"{arguments.host}:{arguments.port} cannot be served ({error}); choose another --port."
        ) from None
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    import gradio

    reid = open_reid(cfg)
    indexed = search(arguments, cfg, [], reid)
    assert indexed
    arguments.rebuild = False

    # `answer` tells of a file that is no image
    vars(gradio)["Image"].preprocess = lambda _, file: file and file.path
    modalities, downloads = cfg.MODEL.MODALITIES, TemporaryDirectory()
    no_file = gradio.update(value=None, interactive=False)

    def answer(top: int, where: str, camera: str | None, *paths: str | None) -> list[object]:
        """Hits, kept patches, and files to download."""
        files = {name: path for name, path in zip(modalities, paths, strict=True) if path}
        if not files:
            return [NOTHING, "", no_file, no_file]
        paths_of = tuple(map(files.get, MODALITIES))
        name = Path(next(iter(files.values()))).stem
        match = arguments.pattern.search(name) if arguments.pattern else None
        labels = {label: text for label, text in match.groupdict().items() if text} if match else {}
        query = Triplet(paths_of, name=name, labels=labels | ({"camera": camera} if camera else {}))
        changed = {"top": top, "where": (where or "").strip() or None}
        chosen = argparse.Namespace(**vars(arguments) | changed)
        try:
            for path in files.values():
                check_image(path)
            hits = search(chosen, cfg, [query], reid)
            assert hits
            page, _ = search_page(hits, chosen, address)
            picture = kept_picture(reid, query)
        except UserError as error:
            alert = f'<p role="alert">{html.escape(str(error))}</p>'
            return [alert, "", no_file, no_file]
        copies = [Path(downloads.name, name) for name in ("hits.html", "hits.csv")]
        copies[0].write_text(page.replace(SERVED, "file://"), encoding="utf-8")
        write_hits(hits, copies[1])
        buttons = [gradio.update(value=str(copy), interactive=True) for copy in copies]
        return [FRAME.format(html.escape(page)), picture, *buttons]

    def show(modality: str, path: str | None) -> Any:
        """An upload as the model reads it, where browsers show it otherwise: scaled from more bits, or turned."""
        with suppress(UserError, OSError):
            if path and (copy := as_read(cfg, modality, path, Path(mkdtemp(dir=downloads.name)))):
                return str(copy)
        return gradio.skip()

    triplets = read_images(arguments, cfg, GALLERY)
    readable = (triplet.without(indexed.broken) for triplet in triplets)
    gallery = [triplet for triplet in readable if triplet.modalities]
    copied, places = Path(downloads.name, "examples"), spread(len(gallery), EXAMPLES)
    examples = [example(cfg, gallery[place], copied / str(place)) for place in places]
    title, hour = f"Search in {arguments.gallery.resolve().name}", 3600
    # of what was uploaded
    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=(hour, hour)) as blocks:
        gradio.Markdown(f"# {title}\n\n{EXPLANATION.format(len(gallery), ', '.join(modalities))}")
        with gradio.Row():
            kinds = ["upload", "clipboard"]
            slots = [gradio.Image(label=name, sources=kinds, height=240) for name in modalities]
        count = min(arguments.top or TOP, MOST_HITS, len(gallery))
        most = max(2, min(MOST_HITS, len(gallery)))
        with gradio.Row():
            top = gradio.Slider(1, most, count, step=1, label="Hits")
            label, hint = "Filter of the gallery, in SQL", "present LIKE '%TI%'"
            where = gradio.Textbox(
                arguments.where or "", label=label, placeholder=hint, max_lines=1
            )
            names = [(name, name) for name in reid.camera_names if name and reid.cameras]
            cameras = [("that of its name, or any", ""), *names]
            camera = gradio.Dropdown(cameras, value="", label="Camera", visible=bool(names))
        hits = gradio.HTML(NOTHING)
        with gradio.Row():
            titles = ("Download as page", "Download as CSV")
            files = [gradio.DownloadButton(title, interactive=False) for title in titles]
        kept = gradio.HTML()
        for modality, slot in zip(modalities, slots, strict=True):
            slot.upload(partial(show, modality), slot, slot, api_visibility="private")
        gradio.Examples(examples, slots, label="Examples, of the gallery")
        gradio.on(
            [top.change, where.submit, where.blur, camera.change, *(slot.change for slot in slots)],
            answer,
            [top, where, camera, *slots],
            [hits, kept, *files],
            api_visibility="private",
            trigger_mode="always_last",
        )
    # others are downloaded
    folder = arguments.gallery.absolute()
    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    _, page, _ = blocks.launch(
        server_name=arguments.host,
        server_port=arguments.port,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        theme=theme,
        footer_links=[],
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        allowed_paths=[str(folder if folder.is_dir() else folder.parent), downloads.name],
    )
    ready = f"{page} searches in {arguments.gallery}; end it with Ctrl-C"
    print_lines(*omissions(indexed.broken), ready)
    blocks.block_thread()


def example(cfg: CfgNode, triplet: Triplet, folder: Path) -> list[str | None]:
    """Copies of the images of a triplet, with 8 bits, as browsers show no more; None for a missing one."""
    names = cfg.MODEL.MODALITIES
    images = decode_triplet(triplet.paths, names, read_ranges(cfg))
    copies: list[str | None] = []
    for name, image in zip(names, images, strict=True):
        copy = folder / name / f"{Path(triplet.name).name}.png"
        copy.parent.mkdir(parents=True, exist_ok=True)
        if image is not None:
            to_pil_image(image).save(copy)
        copies.append(str(copy) if image is not None else None)
    return copies


def as_read(cfg: CfgNode, modality: str, path: str, folder: Path) -> Path | None:
    """A copy of an image, with 8 bits, where Pillow's conversion, like a browser's, differs from it."""
    pixels = decode(path, scale=read_ranges(cfg)[modality])
    with Image.open(path, formats=FORMATS) as image:
        shown = np.asarray(image.convert("RGB"))
    if np.array_equal(pixels.permute(1, 2, 0).numpy(), shown):
        return None
    copy = folder / f"{Path(path).stem}.png"
    to_pil_image(pixels).save(copy)
    return copy


def address(path: str) -> str:
    """Where gradio serves a file."""
    return f"{SERVED}{quote(os.fsencode(Path(path).absolute().as_posix()))}"


def check_image(path: str) -> None:
    """Raise `UserError` for an uploaded file that is no image."""
    try:
        decode(path, advice=f"; drop another ({', '.join(FORMATS)}).")
    except UserError as error:
        raise UserError(str(error).replace(path, Path(path).name)) from None


def kept_picture(reid: Reid, query: Triplet) -> str:
    """The picture of demo-sdtps draw tokens of a triplet, light or dark like the page; nothing where all are kept."""
    if not isinstance(reid, Extractor) or not (reid.model.slimming or reid.model.sdtps):
        return ""
    sources = []
    with TemporaryDirectory() as folder:
        for colours in (nullcontext(), dark()):
            with colours:
                models = [(image_config(reid.cfg), reid.model)]
                path = draw_tokens(models, [query], Path(folder, "kept.png"))
            sources.append(f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}")
    return PICTURE.format(*sources)
