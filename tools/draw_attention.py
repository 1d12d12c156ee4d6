"""Draw what the model looks at: python tools/draw_attention.py --weight W --method rollout --output attention.png"""

from demo_sdtps.commands.draw_attention import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
