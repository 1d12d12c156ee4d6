"""Hooks of mkdocs: pages that lie outside docs/ or exist on the site alone, links between them, formulas as MathML, and
images for light and dark pages."""

import html
import re
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.tables import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the site by the file that they are made from."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.S | re.M)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)

PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)"([^>]*)>\s*</picture>'
)
"""An image for dark pages and one for light pages by the system's colours, which the site's button changes."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {page: (ROOT / source).read_text("utf-8") for source, page in OUTSIDE.items()}
    for name, members in REFERENCE.items():
        lines = [f"# {name}", *(f"::: {member}" for member in members)]
        pages[f"reference/{name}.md"] = "\n\n".join(lines) + "\n"
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    sources = {site: source for source, site in OUTSIDE.items()}
    source = PurePosixPath(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    # the README's picture for light and dark is HTML
    sections = FENCE.split(markdown.replace('="docs/', '="'))
    moved = (LINK.sub(lambda link: move_link(link, source), section) for section in sections[::2])
    sections[::2] = list(moved)
    return "".join(sections)


def move_link(link: re.Match, source: PurePosixPath) -> str:
    """A link of the file `source` as a link between pages; its text alone where it leads to another file of the repository."""
    mark, text, target = link.groups()
    path, _, anchor = target.partition("#")
    if not path or ":" in path:
        return link[0]
    place = (ROOT / source.parent / path).resolve().relative_to(ROOT).as_posix()
    page = place.removeprefix("docs/") if place.startswith("docs/") else None
    address = OUTSIDE.get(place, page)
    text = LINK.sub(lambda inner: move_link(inner, source), text)
    return f"{mark}[{text}]({address}{'#' * bool(anchor)}{anchor})" if address else text


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    content = PICTURE.sub(r'<img src="\2#only-light"\3><img src="\1#only-dark"\3>', content)
    return FORMULA.sub(as_mathml, content)


def as_mathml(formula: re.Match) -> str:
    """A displayed one scrolls where the window is narrower."""
    is_inline = formula[2] == "("
    text = convert(html.unescape(formula[3]), display="inline" if is_inline else "block")
    return text if is_inline else f'<div class="formula">{text}</div>'
