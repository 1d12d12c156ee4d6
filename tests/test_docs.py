"""The pages of the root and of docs/: links, headings and commands refer to what exists; README.zh-CN.md follows README.md."""
import json
import re
import shlex
import statistics
from importlib import import_module

import pytest
import yaml
from commands import ROOT

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
    rows = re.findall(r"^\| ([123]) \w+ \| (\d+\.\d) \| (\d+\.\d) \| (\d+\.\d) \| (\d+\.\d) \|", text(README), re.M)
    models = text(ROOT / "docs" / "models.md")
    assert len(rows) == 3 and all(f"pattern {pattern}: {', '.join(figures)}" in models for pattern, *figures in rows)


GAINS = {"4.5 mAP ahead of the dense": ("slimming", "saliency"), "6.1 at 0.46": ("slimming", "supervised"),
         "with nothing dropped, gains 3.6": ("slimming", "dense with the mask loss (control)"),
         "a fixed map of the middle of the picture 2.9": ("slimming", "mean mask (control: a fixed map)"),
         "the mask loss alone 2.2": ("slimming_loose", "dense with the mask loss (control)"),
         "`supervised` gains 8.1": ("slimming_loose", "supervised"), "`saliency` 2.3": ("slimming_loose", "saliency"),
         "(+0.3 and": ("slimming_pretrained", "supervised"), "and -0.5,": ("slimming_pretrained", "saliency"),
         "costs 8.2 mAP": ("modules", "SDTPS + HDM + ATMoE", "HDM + ATMoE")}
"""Sentences of the README by the study and the variant whose change of mAP they tell, against dense or a third."""


@pytest.mark.parametrize("said", GAINS)
def test_the_prose_of_the_readme_tells_what_the_studies_found(said):
    study, variant, other = (*GAINS[said], "dense")[:3]
    record = json.loads(text(ROOT / "docs" / "results" / f"{study}.json"))
    last = {found["name"]: [records[-1]["patterns"]["3"]["mAP"] for records in found["records"].values()]
            for found in record["variants"]}
    gain = 100 * (statistics.mean(last[variant]) - statistics.mean(last[other]))
    (told,) = map(float, re.findall(r"-?\d+\.\d", said.replace("0.46", "")))
    assert said in re.sub(r"\s+", " ", text(README)) and abs(abs(gain) - abs(told)) < 0.051
    assert told > 0 or gain < 0


def test_the_workflow_runs_the_commands_of_the_readme_on_its_versions_of_python():
    job = yaml.safe_load(text(ROOT / ".github" / "workflows" / "test.yml"))["jobs"]["test"]
    steps = [step.get("run", "") for step in job["steps"]]
    first = without_comments(BLOCK.findall(text(README))[0][1])
    assert first == ["make demo", "make test"] and {*first, "make lint"} <= set(steps)
    assert job["strategy"]["matrix"]["python"] == ["3.10", "3.12"] and "Python 3.10" in text(README)


def test_the_layout_names_every_folder():
    layout = BLOCK.findall(text(ROOT / "docs" / "layout.md"))[0][1]
    named = {name.rstrip("/,") for line in layout.splitlines() for name in line[:28].split() if not line.startswith(" ")}
    linked = {path.name for path in (ROOT / "demo_sdtps").iterdir() if path.name[0] not in "_."}
    folders = {name for name in linked if (ROOT / name).is_dir()}
    assert folders | {"demo_sdtps", "docs", "tests"} <= named
    assert all((ROOT / name).exists() for name in named)
