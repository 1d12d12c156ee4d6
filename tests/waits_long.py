"""What tests/test_distributed.py runs under torchrun: the main process is at work for longer than torch waits by default.

    torchrun --nproc_per_node=2 tests/waits_long.py FOLDER
"""
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed.distributed_c10d as torchs

if __name__ == "__main__":
    import sys

    from demo_sdtps.engine import coordination, distributed

    torchs.default_pg_timeout = timedelta(seconds=2)

    def work():
        time.sleep(5)
        return {"x": torch.ones(1)}, "read"

    with distributed.processes():
        found = distributed.broadcast_from_main(lambda: work()[1]), *coordination.once_per_machine(work)
        Path(sys.argv[1], str(distributed.rank())).write_text(f"{found}")
        if distributed.is_main():
            time.sleep(5)
            Path(sys.argv[1], "main is done").touch()
    assert Path(sys.argv[1], "main is done").exists()  # the other has stayed
