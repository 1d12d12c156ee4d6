"""The pages of the root and of docs/: links, headings and commands refer to what exists; tables are those of the data."""

import re
import runpy
import shlex
from functools import partial

import pytest
from commands import ROOT
from PIL import Image

from demo_sdtps.commands import dispatch, match_command
from demo_sdtps.config.common import COMMAND
from tools import tables
from tools.tables import FIGURES, data

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
PROGRAMS = (COMMAND, "demo_sdtps.commands")
"""What starts a command by its name, after python -m or torchrun -m the second."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def text(page):
    return page.read_text(encoding="utf-8")


def anchors(page):
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text(page)), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(text(page)):
        path = (page.parent / target).resolve() if target else page
        is_web = target.startswith("https:")
        assert is_web or path.exists(), target
        assert is_web or not anchor or anchor in anchors(path), f"{target}#{anchor}"


def commands(page):
    """The words of every line that starts a program."""
    blocks = [block for language, block in BLOCK.findall(text(page)) if language == "bash"]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    starts = ("python ", "torchrun ", f"{COMMAND} ")
    return [shlex.split(line, comments=True) for line in lines if line.startswith(starts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_what_they_name_exist(page):
    named = [
        word
        for words in commands(page)
        for word in words
        if re.fullmatch(r"(\w+/)*\w+\.py|(configs|studies)/.+\.yml", word)
    ]
    assert all((ROOT / word).is_file() for word in named), named
    started = [
        words[words.index(name) + 1 :]
        for words in commands(page)
        for name in PROGRAMS
        if name in words
    ]
    assert all(map(match_command, started)), started
    assert len(named + started) > 3 or page.name != "README.md"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_flags_of_a_page_are_those_of_the_commands(command, page):
    for words in commands(page):
        while words and words[0] not in PROGRAMS and not words[0].endswith(".py"):
            del words[0]
        if not words:
            continue
        program, *words = words
        main = partial(runpy.run_path, str(ROOT / program), run_name="__main__")
        name = match_command(words) if program in PROGRAMS else ""
        _, usage, _ = command(dispatch if name else main, *name.split(), "--help")
        flags = {word for word in words if word.startswith("--")}
        assert "usage: " in usage, words
        assert not [flag for flag in flags if not re.search(rf"{flag}\b", usage)], words


def test_the_tables_are_those_of_the_data(command):
    code, stdout, _ = command(tables.main, "--check")
    assert code == 0, stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_the_pages(name, tmp_path):
    """As large as in docs/images, not blank, and shown on a page."""
    draw, source = FIGURES[name]
    draw(data(source), tmp_path / "x.png")
    with (
        Image.open(tmp_path / "x.png") as image,
        Image.open(ROOT / f"docs/images/{name}.png") as old,
    ):
        assert image.size == old.size and image.convert("RGB").getcolors(20) is None
    results = "".join(text(ROOT / "docs" / f"{page}.md") for page in ("results", "results_all"))
    assert f'src="images/{name}.png"' in results and f'"images/{name}_dark.png"' in results
    assert (ROOT / "docs" / "images" / f"{name}_dark.png").is_file()
