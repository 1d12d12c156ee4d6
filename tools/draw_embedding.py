"""Draw the features as points: python tools/draw_embedding.py --weight W --method tsne --output embedding.png"""

from demo_sdtps.commands.draw_embedding import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
