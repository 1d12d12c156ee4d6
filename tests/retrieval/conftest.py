"""What the tests of retrieval share: a checkpoint, and exports of its features."""

import pytest
from commands import checkpoint_file, cli_args_for

from demo_sdtps.commands import export_features
from demo_sdtps.config import load_cfg


@pytest.fixture(scope="module")
def weights(request, tiny_root, tmp_path_factory):
    """A checkpoint with the module's SETTINGS."""
    words = cli_args_for(tiny_root, *request.module.SETTINGS)
    cfg = load_cfg(words[1], words[2:])
    return checkpoint_file(tmp_path_factory.mktemp("weights") / "last.pth", cfg)


@pytest.fixture
def export_words(request, tiny_root, weights, tmp_path, monkeypatch):
    """The arguments of demo-sdtps export for outputs in `tmp_path`, in batches of eight."""
    monkeypatch.chdir(tmp_path)
    settings = (*request.module.SETTINGS, "TEST.IMS_PER_BATCH", 8)
    return cli_args_for(tiny_root, "--weight", weights, *settings)


@pytest.fixture
def export(export_words, command):
    """Call demo-sdtps export: → (exit code, stdout, stderr)."""
    return lambda name, *more: command(export_features.main, *export_words, "--output", name, *more)
