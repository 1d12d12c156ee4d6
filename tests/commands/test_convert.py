"""convert_checkpoint.py as the shell would call it: both ways, the features that the results give, and what it refuses."""

import pytest
import torch
from commands import CONFIG, FUSION, cli_args_for
from numeric import shift_seed

from demo_sdtps.commands import convert_checkpoint
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.modeling.checkpoints.names import to_demo
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained
from demo_sdtps.modeling.demo import make_model

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture(scope="module")
def words(tiny_root):
    return cli_args_for(tiny_root, *FUSION)


@pytest.fixture(scope="module")
def ours(words, tmp_path_factory):
    """A checkpoint with every module's weights, as train_net.py writes one."""
    cfg = load_cfg(CONFIG, words[2:])
    torch.manual_seed(shift_seed())
    model = make_model(cfg, 6, 4)
    for name, tensor in model.named_buffers():
        if "running" in name:
            tensor.uniform_(0.5, 2)
        elif name.endswith("tracked"):
            tensor.fill_(11)
    path = tmp_path_factory.mktemp("ours") / "best.pth"
    save_checkpoint(path, cfg, model, 3, {"num_class": 6, "camera_num": 4})
    return path


@pytest.fixture(scope="module")
def demo(ours, tmp_path_factory):
    """The same as DeMo would save it: a bare state dict in its order."""
    path = tmp_path_factory.mktemp("demo") / "DeMo.pth"
    torch.save(to_demo(torch.load(ours, weights_only=True)["model"]), path)
    return path


@pytest.fixture
def convert(command):
    """Call the command, which must succeed: → what it wrote, and said."""

    def call(source, target, to, *flags):
        code, stdout, stderr = command(convert_checkpoint.main, source, target, "--to", to, *flags)
        assert code == 0 and not stderr, stderr
        assert [path for path in target.parent.iterdir() if path.name.endswith(".part")] == []
        return torch.load(target, weights_only=True), stdout

    return call


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype and torch.equal(actual[name], tensor), name


def test_to_ours_and_back(convert, demo, tmp_path):
    expected = torch.load(demo, weights_only=True)
    content, stdout = convert(demo, tmp_path / "new" / "ours.pth", "ours")
    assert content == {"model": content["model"], "num_class": 6, "camera_num": 4}
    assert stdout == (
        f"Wrote {len(content['model'])} tensors under our names to {tmp_path / 'new' / 'ours.pth'}: "
        "6 identities, 4 cameras\n"
    )
    back, stdout = convert(tmp_path / "new" / "ours.pth", tmp_path / "back.pth", "demo")
    assert f"Wrote {len(expected)} tensors under DeMo's names" in stdout
    assert_same(back, expected)
    # Stacks and views leave no ballast.
    sizes = [path.stat().st_size for path in (demo, tmp_path / "back.pth")]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)


def test_another_run_starts_from_the_backbone(convert, ours, demo, words, tmp_path):
    """Of the same patch size, though the backbone's own is another."""
    for source in (ours, demo):
        weights, stdout = convert(source, tmp_path / "backbone.pth", "backbone", "--overwrite")
        assert f"MODEL.PRETRAIN_PATH_T {tmp_path / 'backbone.pth'}" in stdout
        path = str(tmp_path / "backbone.pth")
        model = make_model(load_cfg(CONFIG, [*words[2:], "MODEL.PRETRAIN_PATH_T", path]), 3, 2)
        assert "WARNING" not in load_pretrained(model.backbone, "test_vit", path)
        whole = torch.load(ours, weights_only=True)["model"]
        expected = {name: whole[f"backbone.vit.{name}"] for name in weights}
        assert_same(model.backbone.vit.state_dict(), expected)


def test_every_form_gives_the_same_features(exported_arrays, convert, words, ours, demo, tmp_path):
    def export_features(path):
        return torch.from_numpy(exported_arrays(*words, "--weight", path)["features"])

    weights = torch.load(demo, weights_only=True)
    prefixed = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save(prefixed, tmp_path / "prefixed.pth")
    torch.save({"state_dict": prefixed, "epoch": 50}, tmp_path / "contained.pth")
    convert(demo, tmp_path / "ours.pth", "ours")
    convert(ours, tmp_path / "demo.pth", "demo")
    expected = export_features(ours)
    for path in (demo, *tmp_path.glob("*.pth")):
        assert torch.equal(export_features(path), expected), path
