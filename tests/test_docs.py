"""The pages of the root and of docs/: links, headings and commands refer to what exists; README.zh-CN.md follows README.md."""
import json
import re
import shlex
from importlib import import_module

import pytest
import seeds
from commands import ROOT
from scipy import stats

from demo_sdtps.config.schema import KEYS
from demo_sdtps.seps.schema import SEPS_SCHEMA
from demo_sdtps.tools import demo_figures

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
FIGURE = re.compile(r"\d+\.\d ± \d+\.\d")


def text(page):
    return page.read_text(encoding="utf-8")


def anchors(page):
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    links = LINK.findall(text(page))
    for target, anchor in ((target, anchor) for target, anchor in links if not target.startswith("https:")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def commands(page):
    """The words of every command that runs a script."""
    blocks = [block for language, block in BLOCK.findall(text(page)) if language == "bash"]
    return [shlex.split(line, comments=True) for block in blocks for line in block.replace("\\\n", " ").splitlines()
            if line.startswith(("python ", "torchrun "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_name_scripts_and_configurations_that_exist(page):
    named = [word for words in commands(page) for word in words
             if re.fullmatch(r"(\w+/)*\w+\.py|(configs|studies)/.+\.yml", word)]
    assert all((ROOT / word).is_file() for word in named), named
    assert len(named) > 20 or page.name != "README.md"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_flags_of_a_page_are_those_of_the_commands(command, page):
    own = ((words, next((word for word in words if word.endswith(".py") and (ROOT / word).is_file()), None))
           for words in commands(page))
    for words, script in ((words, script) for words, script in own if script):
        flags = {word for word in words[words.index(script):] if word.startswith("--")}
        _, said, _ = command(import_module(f"demo_sdtps.{script[:-3].replace('/', '.')}").main, "--help")
        assert "usage: " in said and all(re.search(rf"{flag}\b", said) for flag in flags), (script, flags)


def without_comments(block):
    """The lines of a block with code, without comments and spaces around them."""
    lines = (line.split("  #")[0].strip() for line in block.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def test_the_chinese_readme_has_the_headings_commands_and_links_of_the_english_one():
    english, chinese = text(README), text(CHINESE)
    levels, translated = (re.findall(r"^#+(?= )", BLOCK.sub("", page), re.M) for page in (english, chinese))
    assert levels == translated and len(levels) > 10
    blocks, same = ([(language, without_comments(block)) for language, block in BLOCK.findall(page)]
                    for page in (english, chinese))
    assert blocks == same and len(blocks) > 8
    assert [target for target, _ in LINK.findall(english)] == [target for target, _ in LINK.findall(chinese)]
    assert english.count("\n|") == chinese.count("\n|"), "rows of the tables"
    for exact in (FIGURE, re.compile(r"(?<!`)`[^`\n]+`(?!`)")):  # figures, and names in code
        assert sorted(exact.findall(BLOCK.sub("", english))) == sorted(exact.findall(BLOCK.sub("", chinese)))


def test_the_figures_of_the_readme_are_those_of_the_results():
    found = FIGURE.findall(text(README))
    assert len(found) > 10 and set(found) <= set(FIGURE.findall(text(ROOT / "docs" / "results.md")))
    rows = re.findall(r"^\| [123] (\w+) \| (\d+\.\d) \| (\d+\.\d) \| (\d+\.\d) \| (\d+\.\d) \|", text(README), re.M)
    models = text(ROOT / "docs" / "models.md")
    assert len(rows) == 3 and all(f"{name}: {', '.join(figures)}" in models for name, *figures in rows)


def test_the_range_of_the_demo_is_students_prediction_interval():
    runs = [{"mAP": {"1": value, "2": 2 * value, "3": 50.0 - value}} for value in (60.0, 61.0, 63.0)]
    found = demo_figures.ranges(runs)
    mean, deviation = 184 / 3, ((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) ** 0.5 / 2**0.5
    reach = 4.302652729911275 * deviation * (4 / 3) ** 0.5  # Student's quantile for two degrees of freedom
    assert stats.t.cdf(4.302652729911275, 2) == pytest.approx(0.975)
    assert found["1"] == pytest.approx([mean - reach, mean + reach])
    assert found["2"] == pytest.approx([2 * mean - 2 * reach, 2 * mean + 2 * reach])
    assert found["3"] == pytest.approx([50 - mean - reach, 50 - mean + reach])


def test_the_demo_is_compared_with_the_readme(tmp_path, command):
    last = {pattern: {"mAP": value} for pattern, value in (("1", 0.5), ("2", 0.61), ("3", 0.7))}
    (tmp_path / "metrics.json").write_text(json.dumps([{"epoch": 1}, {"epoch": 2, "patterns": last}]))
    code, said, _ = command(demo_figures.main, "--run", tmp_path)
    shown = " / ".join(f"{value:.1f}" for value in json.loads(demo_figures.FIGURES.read_text())["runs"][0]["mAP"].values())
    assert code == 0 and said.count("\n") == 1 and f"50.0 / 61.0 / 70.0 here, {shown} in the README" in said
    rows = [row.split("|")[2].strip() for row in (demo_figures.ROOT / "README.md").read_text().splitlines()
            if row.startswith(("| 1 original", "| 2 enhanced", "| 3 both"))]
    assert rows == shown.split(" / ")


def test_the_numeric_tests_of_the_page_are_those_measured():
    measured = json.loads((ROOT / "docs" / "seeds.json").read_text())
    assert seeds.table(measured["rows"]) in text(ROOT / "docs" / "agreement.md")
    assert len(measured["rows"]) == 15


def test_the_layout_names_every_folder():
    layout = BLOCK.findall(text(ROOT / "docs" / "layout.md"))[0][1]
    named = {name.rstrip("/,") for line in layout.splitlines() for name in line[:28].split() if not line.startswith(" ")}
    linked = {path.name for path in (ROOT / "demo_sdtps").iterdir() if path.name[0] not in "_."}
    folders = {name for name in linked if (ROOT / name).is_dir()}
    assert folders | {"demo_sdtps", "docs", "tests"} <= named
    assert all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("name", ["README", "docs/method", "docs/api", "docs/configurations"])
def test_the_keys_of_a_page_exist(name):
    keys = set(re.findall(r"\b(?:MODEL|INPUT|DATASETS|DATALOADER|SOLVER|TEST)\.[A-Z_]+[A-Z]\b", text(ROOT / f"{name}.md")))
    assert keys <= {key.name for key in (*KEYS, *SEPS_SCHEMA.keys)}
