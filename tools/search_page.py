"""The page of tools/search.py: queries and their hits, with small images, in one HTML file without any other."""
import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment
from PIL import Image

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.files import atomic_write
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import decode

SIDE, QUALITY = 128, 80  # longest side of an image in pixels, and its quality as JPEG
MOST_BYTES = 15 << 20  # of the images on a page; queries beyond are left out, which the page says
MOST_HITS = 50  # hits of a query on the page

PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hits in {{ gallery }}</title>
<style>
:root { color-scheme: light dark; --text: #1c2024; --quiet: #5c6570; --page: #fff; --card: #f2f4f6; --query: #3b6fd4 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ec; --quiet: #9aa4af; --page: #15181b; --card: #22272c; --query: #7da4f0 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 1600px; font: 1rem/1.4 system-ui, sans-serif;
       color: var(--text); background: var(--page) }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1rem; margin: 2rem 0 .5rem }
h1, h2, p, figcaption { overflow-wrap: anywhere }
p, .name { color: var(--quiet); margin: .3rem 0 }
ol { list-style: none; margin: 0; padding: 0; display: grid; gap: .6rem;
     grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)) }
figure { margin: 0; padding: .5rem; height: 100%; border-radius: .4rem; background: var(--card) }
.query { outline: 2px solid var(--query) }
.images { display: grid; grid-template-columns: repeat({{ modalities | length }}, 1fr); gap: .25rem; align-items: center;
          font-size: .7rem; text-align: center; color: var(--quiet) }
img { display: block; width: 100%; border-radius: .2rem }
.missing { padding: 2rem 0; border: 1px dashed; border-radius: .2rem }
figcaption { font-size: .8rem; margin-top: .3rem }
</style>
<h1>Hits in {{ gallery }}</h1>
<p>{{ shown }}</p>
<p>d: {{ distance }}</p>
{%- for row in rows %}
<section>
<h2>{{ row[0].file }}</h2>
<ol>
{%- for card in row %}
<li><figure{% if loop.first %} class="query"{% endif %}>
<div class="images">
{%- for image in card.images %}
{%- set modality = modalities[loop.index0] %}
<div>
{%- if image %}<img src="data:image/jpeg;base64,{{ image }}" alt="{{ modality }} of {{ card.name }}">
{%- else %}<div class="missing">–</div>{% endif %}{{ modality }}</div>
{%- endfor %}
</div>
<figcaption><strong>{{ card.title }}</strong><div class="name">{{ card.name }}</div></figcaption>
</figure></li>
{%- endfor %}
</ol>
</section>
{%- endfor %}
</html>
"""


def write_page(path: Path, queries: Sequence[Triplet], found: Sequence[Sequence[Triplet]], distances: np.ndarray, gallery: str,
               distance: str) -> str:
    """Write the page, and return a line on it. `distance` says what the distances (Q, top) are. Raises `UserError`."""
    rows: list[list[Card]] = []
    size, most = 0, min(MOST_HITS, len(found[0]))
    for query, hits, line in progress(list(zip(queries, found, distances, strict=True)), "drawing", unit="query"):
        row = [card(query, "query"), *(card(hit, f"{rank}: d = {value:.4f}")
                                       for rank, (hit, value) in enumerate(zip(hits[:most], line, strict=False), start=1))]
        size += sum(len(image) for one in row for image in one.images if image)
        if rows and size > MOST_BYTES:
            break
        rows.append(row)
    is_whole = len(rows) == len(queries) and most == len(found[0])
    shown = f"{len(rows)} of {len(queries)} queries, each with its {most} nearest" + (
        "" if is_whole else "; the page is limited, --csv writes all hits")
    page = Environment(autoescape=True).from_string(PAGE).render(rows=rows, gallery=gallery, shown=shown, distance=distance,
                                                                 modalities=MODALITIES)
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="backslashreplace")  # names may have bytes that are not UTF-8
    return f"Wrote {path}, {path.stat().st_size / 2**20:.1f} MiB: {shown}"


class Card(NamedTuple):
    """A triplet on the page: its images of RGB, NI and TI as JPEG in base64, None for a missing one."""

    title: str
    name: str
    file: str
    images: list[str | None]


def card(triplet: Triplet, title: str) -> Card:
    return Card(title, triplet.name, triplet.file, [path and thumbnail(path) for path in triplet.paths])


@lru_cache(maxsize=4096)  # many queries may have the same hits
def thumbnail(path: str) -> str:
    """An image within `SIDE` × `SIDE` pixels, as JPEG in base64. Raises `UserError` where it cannot be read."""
    image = Image.fromarray(decode(path).permute(1, 2, 0).numpy())
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY)
    return base64.b64encode(content.getvalue()).decode()
