"""Output files: refused before the work where they cannot be written, whole or absent after it."""
import pytest
import torch

from demo_sdtps.config import UserError
from demo_sdtps.config.files import atomic_write, check_output_file
from demo_sdtps.engine.checkpoint import save_whole


def test_a_file_is_written_whole_in_a_new_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "x.json"
    with atomic_write(path) as temporary:
        temporary.write_text("1")
        assert not path.exists()
    assert path.read_text() == "1"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half"), atomic_write(path) as temporary:
        temporary.write_text("ne")
        raise RuntimeError("half-way")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x.npz", "new/folder/x.npz"])
def test_places_that_can_be_written(tmp_path, name):
    assert check_output_file(tmp_path / name, ".npz") == tmp_path / name
    assert not list(tmp_path.iterdir()), "the check itself writes nothing"


@pytest.mark.parametrize("name", ["x.npy", "x", "folder.npz", "file/x.npz"])
def test_places_that_cannot(tmp_path, name):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"must be a file ending in \.npz"):
        check_output_file(tmp_path / name, ".npz")


def test_a_file_that_cannot_be_written_is_reported(tmp_path):
    """A disk that is full: /dev/full takes no byte."""
    (tmp_path / "x.pth.part").symlink_to("/dev/full")
    with pytest.raises(UserError) as raised:
        save_whole({"a": torch.zeros(100_000)}, tmp_path / "x.pth")
    assert f"The output {tmp_path / 'x.pth'} cannot be written (No space left on device); " in str(raised.value)
    assert not list(tmp_path.iterdir())
