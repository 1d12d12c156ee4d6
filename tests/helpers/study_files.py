"""Studies of tiny images, and what tables in Markdown have."""

import yaml
from commands import CONFIG, SMALL


def write(folder, variants, **more):
    """A study on tiny images."""
    content = {
        "title": "A study",
        "config": str(CONFIG),
        "seeds": [1, 2],
        "set": dict(zip(SMALL[::2], SMALL[1::2], strict=True)),
        "missing": True,
        "variants": variants,
    } | more
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def table_rows(text):
    """The cells of a Markdown table's rows by the first, without emphasis."""
    lines = [
        [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}
