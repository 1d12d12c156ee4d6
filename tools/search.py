"""Search own images: python tools/search.py --weight W --gallery FOLDER --query FOLDER_OR_FILE --output hits.html"""

from demo_sdtps.commands.search import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
