"""What tests/test_distributed.py runs under torchrun: train_net.py in FOLDER/<rank>, in rank 1 with more words.

    torchrun --nproc_per_node=2 tests/unlike_ranks.py FOLDER WORD … -- WORD …
"""
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    from demo_sdtps import train_net
    from demo_sdtps.config.cli import run

    _, folder, *words = sys.argv
    place, rank = words.index("--"), os.environ["RANK"]
    (Path(folder) / f"process {os.getpid()}").touch()
    os.chdir(Path(folder) / rank)
    sys.argv[1:] = words[:place] + (words[place + 1:] if rank == "1" else [])
    try:
        run(train_net.main)
    except SystemExit as ended:
        (Path(folder) / f"code {ended.code} of rank {rank}").touch()
        raise
