"""Scripts in processes that have torch loaded already: forked from one that a test process starts once."""

import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

from commands import ROOT
from launch import free_port

LONGEST = 300
"""Seconds after which a process hangs."""
LOADED = ["fvcore.nn", "torch.utils.tensorboard", "demo_sdtps.training.reid", "seps.training"]
"""What the processes have in common."""


class Script:
    """A script in a process of its own, in a session of its own; it is used as subprocess.Popen is."""

    def __init__(self, script, *words, cwd=ROOT, **environment):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        folder = Path(tempfile.mkdtemp())
        self.outputs = [folder / name for name in ("stdout.txt", "stderr.txt")]
        for path in self.outputs:
            path.touch()
        self.stderr = SimpleNamespace(read=self.outputs[1].read_text, close=lambda: None)
        arguments = ([str(word) for word in (script, *words)], str(cwd), environment, self.outputs)
        self.process = context.Process(target=_run, args=arguments)
        self.process.start()
        self.pid, self.kill = self.process.pid, self.process.kill

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout=LONGEST):
        self.process.join(timeout)
        if self.process.is_alive():
            self.kill()
            raise TimeoutError(self.outputs[1].read_text())
        return self.process.exitcode

    def communicate(self, timeout=LONGEST):
        self.wait(timeout)
        return [path.read_text() for path in self.outputs]

    returncode = property(poll)


def run_script(script, *words, **settings):
    """Run a script → its returncode, stdout and stderr."""
    process = Script(script, *words, **settings)
    stdout, stderr = process.communicate()
    return SimpleNamespace(returncode=process.returncode, stdout=stdout, stderr=stderr)


def run_two(script, *words):
    """Run a script or module in two processes as torchrun starts them → the largest returncode, stdout and stderr of both."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    script = ROOT / script if str(script).endswith(".py") else script
    both = [Script(script, *words, RANK=rank, LOCAL_RANK=rank, **shared) for rank in ("0", "1")]
    stdout, stderr = map("".join, zip(*(process.communicate() for process in both), strict=True))
    code = max(abs(process.returncode) for process in both)
    return SimpleNamespace(returncode=code, stdout=stdout, stderr=stderr)


def _run(words, cwd, environment, outputs):
    os.setsid()
    warnings.simplefilter("ignore")
    for number, path in enumerate(outputs, start=1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.argv = words
    if Path(words[0]).suffix == ".py":
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.path.insert(0, cwd)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
