"""The programs of the pages in docs/."""

import re

from commands import ROOT


def program(page, library):
    """The Python program of a page that imports a library."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    (code,) = [block for block in blocks if re.search(rf"^(import|from) {library}\b", block, re.M)]
    return code


def run_program(page, library):
    """Run the program in this process: → its variables."""
    variables = {}
    exec(program(page, library), variables)
    return variables
