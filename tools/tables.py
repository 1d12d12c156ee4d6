"""Write the tables of README.md and docs/ that are made from data: python -m tools.tables [--check]"""

import argparse
import sys

from demo_sdtps.config.cli import add_switch, print_lines, read_arguments, run


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the tables between the markers <!-- table: NAME --> and <!-- end --> of the pages, from the JSON in "
        "docs/ that other commands wrote, the schema of the configuration and the list of commands; and draw the figures of "
        "studies."
    )
    add_switch(parser, "--check", "write nothing, name pages that are not current, exit code 1")
    arguments = read_arguments(parser)
    from demo_sdtps.reports.figures import dark
    from demo_sdtps.runtime.files import atomic_write
    from tools.pages import DOCS, FIGURES, pages, with_tables

    texts = {page: with_tables(page) for page in pages()}
    changed = [page for page in texts if texts[page] != page.read_text(encoding="utf-8")]
    if arguments.check:
        print_lines(*(f"{page}: its tables are not those of the data" for page in changed))
        sys.exit(1 if changed else 0)
    for page in changed:
        with atomic_write(page) as temporary:
            temporary.write_text(texts[page], encoding="utf-8")
    for name, draw in FIGURES.items():
        draw(DOCS / "images" / f"{name}.png")
        with dark():
            draw(DOCS / "images" / f"{name}_dark.png")
    print_lines(*(f"{page}: written" for page in changed))


if __name__ == "__main__":
    run(main)
