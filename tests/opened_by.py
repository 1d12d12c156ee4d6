"""What tests/test_distributed_tools.py runs under torchrun: a command, of which each process notes that it opens FILE.

    torchrun --nproc_per_node=2 tests/opened_by.py FOLDER FILE MODULE WORD …
"""
import os
import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    from demo_sdtps.config.cli import run

    _, folder, watched, module, *words = sys.argv
    note = Path(folder, f"opened by rank {os.environ['RANK']}")
    sys.addaudithook(lambda event, args: note.touch() if event == "open" and str(args[0]) == watched else None)
    sys.argv[1:] = words
    run(import_module(f"demo_sdtps.{module}").main)
