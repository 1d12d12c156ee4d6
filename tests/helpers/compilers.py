"""Where torch.compile works, and what it warns of."""

import shutil

import pytest

IN_THE_COMPILER = pytest.mark.filterwarnings("default")
"""Torch's compiler warns of what it does itself."""


COMPILES = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
