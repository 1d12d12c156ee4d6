"""Search in a browser: demo-sdtps app --weight W --gallery FOLDER"""

from demo_sdtps.commands import flags
from demo_sdtps.commands.search import search_parser
from demo_sdtps.config import cli


def main() -> None:
    parser = search_parser(
        "Serve a page on this machine: drop one to three images of a query onto it, see their hits in a gallery and the "
        "patches that the model keeps. Nothing leaves the machine."
    )
    host = "address to serve at; 0.0.0.0 lets other machines in (default: 127.0.0.1)"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    cli.add_count(parser, "--port", 7860, "port to serve at")
    parser.set_defaults(keep_self=True, camera=None)  # what is uploaded is a file of its own
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.reports.app import serve

    serve(arguments, cfg)
