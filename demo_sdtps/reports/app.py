"""A web application for search in own images, which reaches for nothing elsewhere: tools/app.py (docs/retrieval.md)."""

import argparse
import html
import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import WEIGHT_EXAMPLE
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.evaluation.command import prepare_evaluation
from demo_sdtps.reports.search_page import omissions, page_of
from demo_sdtps.reports.tokens import draw_tokens
from demo_sdtps.retrieval.extractor import Extractor, make_extractor
from demo_sdtps.retrieval.search import search
from demo_sdtps.runtime.errors import check_extra

FRAME = '<iframe title="hits" srcdoc="{}" style="width: 100%; height: 60vh; border: 0"></iframe>'


def serve(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Bring the index of --gallery up to date, and serve until Ctrl-C."""
    prepare_evaluation(cfg, WEIGHT_EXAMPLE)
    packages = {"gradio": "gradio", "faiss": "faiss-cpu", "jinja2": "jinja2"}
    check_extra("tools/app.py", "app", packages)
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

    reid = make_extractor(cfg)
    begun = search(arguments, cfg, [], reid)
    assert begun
    arguments.rebuild = False

    def answer(*paths: str | None) -> tuple[str, Image.Image | None]:
        if not any(paths):
            return "", None
        files = dict(zip(modalities, paths, strict=True))
        name = Path(next(filter(None, paths))).stem
        query = Triplet(name, tuple(map(files.get, MODALITIES)))
        try:
            hits = search(arguments, cfg, [query], reid)
            assert hits
            page, _ = page_of(hits, arguments.gallery, address)
            return FRAME.format(html.escape(page)), kept_patches(reid, query)
        except UserError as error:
            raise gradio.Error(str(error)) from None

    modalities = cfg.MODEL.MODALITIES
    title, hour = f"Search in {arguments.gallery.resolve().name}", 3600
    # of what was uploaded
    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=(hour, hour)) as blocks:
        with gradio.Row():
            slots = [
                gradio.Image(
                    label=modality,
                    type="filepath",
                    image_mode=None,
                    sources=["upload", "clipboard"],
                    height=240,
                )
                for modality in modalities
            ]
        hits = gradio.HTML()
        kept = gradio.Image(label="kept patches", interactive=False, buttons=["fullscreen"])
        gradio.on(
            [slot.change for slot in slots],
            answer,
            slots,
            [hits, kept],
            api_visibility="private",
            trigger_mode="always_last",
        )
    # others are downloaded
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
        allowed_paths=[str(arguments.gallery.absolute())],
    )
    ready = f"{page} searches in {arguments.gallery}; end it with Ctrl-C"
    print_lines(*omissions(begun.broken), ready)
    blocks.block_thread()


def address(path: str) -> str:
    """Where gradio serves a file."""
    return f"/gradio_api/file={quote(os.fsencode(Path(path).absolute().as_posix()))}"


def kept_patches(reid: Extractor, query: Triplet) -> Image.Image | None:
    """The picture of tools/draw_tokens.py of a triplet; None for a model that keeps all patches."""
    if not reid.model.slimming and not reid.model.sdtps:
        return None
    sample = Sample(query.paths, UNKNOWN, UNKNOWN)
    with TemporaryDirectory() as folder:
        path = draw_tokens([(reid.cfg, reid.model)], [sample], Path(folder, "kept.png"))
        return Image.open(path).convert("RGB")
