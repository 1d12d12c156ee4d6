"""Shared by all tests."""
import os
import sys
from pathlib import Path

import torch

# The tests import the project from its root and its own helpers from tests/, installed or not.
sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent)]
# Nothing may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(min(2, os.cpu_count() or 1))
