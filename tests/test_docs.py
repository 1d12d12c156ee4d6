"""README.md and docs/*.md: links, headings and commands refer to what exists."""
import re
import shlex

import pytest
from commands import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page):
    """The anchors of a page's headings, as GitHub forms them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    for target, anchor in ((target, anchor) for target, anchor in links if not target.startswith("https:")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_name_scripts_and_configurations_that_exist(page):
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()
                if line.startswith(("python ", "torchrun "))]
    named = [word for line in commands for word in shlex.split(line, comments=True)
             if re.fullmatch(r"(\w+/)*\w+\.py|(configs|studies)/.+\.yml", word)]
    assert all((ROOT / word).is_file() for word in named), named
    assert len(named) > 20 or page.name != "README.md"


def test_the_layout_in_the_readme_names_every_folder():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    layout = text.split("## Repository layout")[1].split("```")[1]
    named = {name.rstrip("/,") for line in layout.splitlines() for name in line[:28].split() if not line.startswith(" ")}
    linked = {path.name for path in (ROOT / "demo_sdtps").iterdir() if path.name[0] not in "_."}
    folders = {name for name in linked if (ROOT / name).is_dir()}
    assert folders | {"demo_sdtps", "docs", "tests"} <= named
    assert all((ROOT / name).exists() for name in named)
