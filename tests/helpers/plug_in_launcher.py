"""`python -m demo_sdtps` in a process that has torch loaded already: forked from one that a test module starts once."""

import multiprocessing
import os
import runpy
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

LONGEST = 300
"""Seconds after which a command hangs."""
LOADED = ["fvcore.nn", "demo_sdtps.plug_in.launch", "demo_sdtps.plug_in.fast"]
"""What the processes have in common."""


def launch(checkout, *words, **environment):
    """`python -m demo_sdtps WORDS` run in a checkout → its returncode, stdout and stderr."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    outputs = [Path(checkout).parent / name for name in ("stdout.txt", "stderr.txt")]
    process = context.Process(
        target=_run, args=(str(checkout), [str(word) for word in words], environment, outputs)
    )
    process.start()
    process.join(LONGEST)
    code = process.exitcode
    process.kill()
    process.join()
    return SimpleNamespace(
        returncode=code, stdout=outputs[0].read_text(), stderr=outputs[1].read_text()
    )


def _run(checkout, words, environment, outputs):
    warnings.simplefilter("ignore")
    for number, path in enumerate(outputs, start=1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    os.chdir(checkout)
    os.environ.update(environment)
    sys.path.insert(0, checkout)
    sys.argv = ["demo_sdtps", *words]
    runpy.run_module("demo_sdtps", run_name="__main__", alter_sys=True)
