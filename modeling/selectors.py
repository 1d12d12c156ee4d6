"""Former place of modeling/scores (demo_sdtps/moved.py)."""
from demo_sdtps.moved import import_moved

import_moved(__name__)
