"""The files that a run leaves out or keeps when it starts in a folder, and the digest by which it knows its data."""

from pathlib import Path

import pytest
from commands import CONFIG, contents
from interrupted import at, kill

from demo_sdtps.config import load_cfg
from demo_sdtps.training.output import CONFIG as CONFIG_FILE
from demo_sdtps.training.output import RUN_FILES, prepare_folder
from demo_sdtps.training.resume import describe_files, digest_lines


def test_a_start_that_is_killed_while_it_removes_files_leaves_their_configuration(tmp_path):
    """Whatever it has removed, so that RESUME auto starts the run that the folder is of."""
    cfg = load_cfg(CONFIG, ["OUTPUT_DIR", str(tmp_path)])
    names = [name.replace("*", "1") for name in RUN_FILES]
    for name in names:
        (tmp_path / name).write_text("")
    for number in range(1, len(names)):
        with at(Path, "unlink", 2, kill), pytest.raises(KeyboardInterrupt):
            prepare_folder(cfg, None)
        assert len(contents(tmp_path)) == len(names) - number and (tmp_path / CONFIG_FILE).exists()


def test_a_damaged_checkpoint_does_not_become_the_previous_one(tmp_path):
    for name in ("last.pth", "last.previous.pth"):
        (tmp_path / name).write_text(name)
    cfg = load_cfg(CONFIG, ["OUTPUT_DIR", str(tmp_path)])
    prepare_folder(cfg, tmp_path / "last.previous.pth")
    assert {*contents(tmp_path)} == {"config.yml", "last.previous.pth"}


def test_the_digest_of_data_has_names_order_sizes_and_texts(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.jpg")]
    for path in paths:
        open(path, "w").close()

    def digest(paths, *captions):
        files = describe_files(str(tmp_path), paths)
        return digest_lines({"train": files, "captions": captions})

    first = digest(paths, "a dog", "a cat")
    assert first == digest(paths, "a dog", "a cat")
    assert first != digest(paths[::-1], "a dog", "a cat")
    assert first != digest(paths[:1], "a dog", "a cat")
    assert first != digest(paths, "a cat", "a dog")
    (tmp_path / "b.jpg").write_text("longer")
    assert first != digest(paths, "a dog", "a cat")
