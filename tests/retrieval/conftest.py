"""What the tests of retrieval share: a checkpoint, exports of its features, and a gallery to search in."""

import pytest
from commands import checkpoint_file, cli_args_for, copy

from demo_sdtps.commands import search
from demo_sdtps.commands.export import features as export_features
from demo_sdtps.config import MODALITIES, load_cfg


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
def export(export_words, success):
    """Call demo-sdtps export: → what it prints."""
    return lambda name, *more: success(export_features, *export_words, "--output", name, *more)


@pytest.fixture
def place(files, tmp_path, monkeypatch):
    """The current folder: a `gallery` of five triplets, the second without NI, and a `query` of two, RGB and TI."""
    monkeypatch.chdir(tmp_path)
    for modality in MODALITIES:
        for number, path in enumerate(files[modality.lower()]):
            copy(path, tmp_path / "gallery" / modality / f"photo {number}.jpg")
            if number < 2 and modality != "NI":
                copy(path, tmp_path / "query" / modality / f"<i>&{number}.jpg")
    (tmp_path / "gallery" / "NI" / "photo 1.jpg").unlink()
    return tmp_path


@pytest.fixture
def search_call(weights, place):
    """The command on `gallery` and `query`, and its words."""

    def call(*words, query="query", gallery="gallery"):
        places = ("--gallery", gallery, "--query", query)
        return (search.main, "--weight", weights, *places, *words)

    return call


@pytest.fixture
def run_search(command, search_call):
    """Call it: → (exit code, stdout, stderr)."""
    return lambda *words, **sides: command(*search_call(*words, **sides))


@pytest.fixture
def search_output(success, search_call):
    """Call it, which must succeed: → what it prints."""
    return lambda *words, **sides: success(*search_call(*words, **sides))


@pytest.fixture
def search_refusal(refusal, search_call):
    """Call it, which must end with a sentence and change no file → the sentence."""
    return lambda *words: refusal(*search_call(*words))
