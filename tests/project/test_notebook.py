"""examples/demo.ipynb runs from its first cell to its last, and its stored outputs are small."""

import nbformat
import pytest
from commands import ROOT
from nbclient import NotebookClient

FILE = ROOT / "examples" / "demo.ipynb"


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def images(notebook):
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.slow
@pytest.mark.soak
# Of jupyter_client, about its own connection to the kernel.
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning:jupyter_client", "ignore::DeprecationWarning:zmq"
)
def test_the_notebook_runs(tmp_path, monkeypatch):
    """On eight persons, for one epoch, in another folder than the checkout's."""
    for name, value in {"FOLDER": tmp_path / "runs", "IDENTITIES": 8, "EPOCHS": 1}.items():
        monkeypatch.setenv(f"NOTEBOOK_{name}", str(value))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(FILE, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    assert images(notebook) == 3
    texts = "\n".join(output.get("text", "") for output in outputs(notebook))
    assert "mean of the six" in texts and "epoch 1" in texts
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "ipython"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"data", "run", "tokens.png"}
