"""Progress bars in a terminal, of any size and of none, as those of containers say."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

BAR = "from demo_sdtps.runtime.progress import progress; [*progress(range(9), 'work')]"


@pytest.mark.parametrize("rows, columns", [(24, 80), (0, 0)])
def test_a_terminal_shows_a_bar(rows, columns):
    ours, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    subprocess.run([sys.executable, "-c", BAR], stderr=terminal, check=True)
    assert b"work: " in os.read(ours, 10_000)
