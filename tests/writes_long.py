"""What tests/test_ending.py runs under torchrun: the main process writes a file for minutes, and the others wait for it.

    torchrun --nproc_per_node=2 tests/writes_long.py FILE
"""
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    from demo_sdtps.config.cli import run
    from demo_sdtps.config.files import atomic_write
    from demo_sdtps.engine import distributed

    def main():
        with distributed.processes():
            if distributed.is_main():
                with atomic_write(Path(sys.argv[1])):
                    time.sleep(300)
            distributed.all_gather_object(None)

    run(main)
