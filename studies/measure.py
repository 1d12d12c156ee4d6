"""What studies alone measure of a trained model: python -m studies.measure --what similarity --weight W --json FILE"""

from pkgutil import resolve_name

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.runtime.files import write_json

MEASURES = {
    "similarity": "how alike its outputs are",
    "calibration": "how well calibrations hold on other identities and cameras",
}
"""Modules of studies/, each with a function `measure` of the configuration."""


def main() -> None:
    parser = flags.config_parser("Measure a trained model, as its module in studies/ describes.")
    cli.add_choice(parser, "--what", MEASURES, "similarity")
    cli.add_output(parser, "--json", ".json", help="write it to this file")
    arguments, cfg = flags.parse(parser)
    content = resolve_name(f"studies.{arguments.what}:measure")(cfg)
    if arguments.json:
        write_json(arguments.json, content)
    cli.print_lines(*(f"{name}: {value}" for name, value in content.items()))


if __name__ == "__main__":
    cli.run(main)
