"""Former place of the training, evaluation and retrieval (demo_sdtps/moved.py)."""
from demo_sdtps.moved import import_moved

import_moved(__name__)
