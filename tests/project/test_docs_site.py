"""The site of docs/ (mkdocs.yml, docs/site/), built as `make docs` does."""

import os
import re
import subprocess
import sys
from html import unescape
from inspect import getdoc

import pytest
from commands import ROOT

import demo_sdtps

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site: → {page: its HTML}. Strict: a warning, such as of a link to nothing, is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment)
    assert done.returncode == 0
    return {
        str(page.relative_to(folder)): page.read_text("utf-8") for page in folder.rglob("*.html")
    }


def visible_text(page):
    """The text of a page in one line, without markup."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())


@pytest.mark.parametrize("name", demo_sdtps.__all__)
def test_the_reference_has_the_docstring_of_every_public_name(site, name):
    page = site["reference/demo_sdtps.html"]
    assert f'id="demo_sdtps.{name}"' in page
    first = getdoc(getattr(demo_sdtps, name)).split("\n\n")[0].replace("`", "")
    assert " ".join(first.split()) in visible_text(page)
