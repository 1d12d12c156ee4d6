"""Imported first by a file that is run, as a script, by `python -m`, or by a process that such a one spawns: of the project,
only demo_sdtps can be imported afterwards.

Python puts the folder of a script on the path, where the project's folders would hide other packages of their names, such as
Hugging Face's `datasets`. The threads of torch are decided before it is imported.
"""
import sys
from pathlib import Path

from demo_sdtps.runtime import threads

ROOT = Path(threads.__file__).resolve().parents[1]

sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() not in (ROOT, Path(sys.argv[0]).resolve().parent)]
threads.prepare_threads()
