"""What tests/test_distributed.py runs under torchrun: train_net.py in FOLDER/<rank>, in rank 1 with more words, and in rank 0
on a processor that has bfloat16 instructions, in rank 1 on one that has none.

    torchrun --nproc_per_node=2 tests/unlike_ranks.py FOLDER WORD … -- WORD …
"""
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    import torch

    from demo_sdtps import train_net
    from demo_sdtps.config.cli import run

    _, folder, *words = sys.argv
    place, rank = words.index("--"), os.environ["RANK"]
    torch.cpu._is_amx_tile_supported = torch.cpu._is_avx512_bf16_supported = lambda: rank == "0"
    (Path(folder) / f"process {os.getpid()}").touch()
    os.chdir(Path(folder) / rank)
    sys.argv[1:] = words[:place] + (words[place + 1:] if rank == "1" else [])
    try:
        run(train_net.main)
    except SystemExit as ended:
        (Path(folder) / f"code {ended.code} of rank {rank}").touch()
        raise
