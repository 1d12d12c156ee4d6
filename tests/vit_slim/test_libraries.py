"""What the test suites of timm and transformers ask of their models, and what traces them, of slimmed ones: a table of checks
and libraries."""

import copy
import io
import tempfile
from functools import partial

import pytest
import torch
from numeric import assert_close
from slim_models import CASES, PATH, Called, agree
from timm.layers import set_reentrant_ckpt
from torch import nn

import demo_sdtps
from demo_sdtps.config import UserError

pytestmark = [pytest.mark.slow, pytest.mark.numeric]
STAGES = (1, 2), (0.6, 0.5)
TIMM = ("timm", "timm, registers", "timm, rotary")  # the last two are DINOv2 and Eva
TRANSFORMERS = ("ViT", "DINOv2", "DINOv3")
ALL = (*TIMM, *TRANSFORMERS, "torchvision", "open_clip")


def change(act, case, dense, model):
    """A change after `slim` gives the same as one before it."""
    act(model)
    act(dense)
    dense.load_state_dict(model.state_dict())
    demo_sdtps.slim(dense, *STAGES)
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", case.grid)
    images = case._replace(grid=grid).draw()
    assert torch.equal(case.call(model, images), case.call(dense, images))


def save_and_load(case, dense, model):
    """Whole by torch, and the weights by transformers, which loads the dense model."""
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    again, images = torch.load(file, weights_only=False), case.draw()
    assert torch.equal(case.call(again, images), case.call(model, images))
    if hasattr(model, "save_pretrained"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = type(model).from_pretrained(folder, dtype=torch.double)
        assert_close(case.call(again, images), case.call(dense, images), *PATH)


def replace_patches(case, dense, model):
    """By another convolution, as for another size of patches or thermal images."""
    modules = dense.named_modules()
    path, patches = next(each for each in modules if isinstance(each[1], nn.Conv2d))
    model.set_submodule(path, patches)
    with pytest.raises(UserError, match="slim again after the patch convolution was replaced"):
        case.call(model, case.draw())
    demo_sdtps.slim(demo_sdtps.unslim(model), *STAGES)
    case.call(model, case.draw())


def compute_again(reentrant, case, dense, model):
    """Gradient checkpointing, also of two forwards before one backward pass."""
    plain = copy.deepcopy(model.train())
    if hasattr(model, "set_grad_checkpointing"):
        set_reentrant_ckpt(reentrant)
        model.set_grad_checkpointing(True)
    else:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    torch.manual_seed(1)
    try:
        agree(case.call, plain, model, case.draw(4), 2)
    finally:
        set_reentrant_ckpt(False)


def trace(to_graph, case, dense, model):
    """The graph prunes other images, of other batches, too, and one of one colour, whose patches all score the same."""
    with torch.no_grad():
        graph = to_graph(Called(case, model).eval(), (case.draw(2),))
        for batch in (1, 3):
            images = case.draw(batch, seed=batch)
            images[-1] = 0.5
            assert_close(graph(images), case.call(model, images), *PATH)


SHAPES = {"dynamic_shapes": ({0: torch.export.Dim("batch", min=1, max=64)},)}


def export(model, images):
    return torch.export.export(model, images, **SHAPES).module()


@torch.enable_grad()  # or the older exporter meets torch's fused attention, which it does not know
def to_onnx(model, images, **how):
    onnxruntime = pytest.importorskip("onnxruntime")
    file, model = io.BytesIO(), copy.deepcopy(model).float()
    torch.onnx.export(model, (images[0].float(),), file, input_names=["x"], **how)
    session = onnxruntime.InferenceSession(file.getvalue())
    return lambda images: torch.from_numpy(session.run(None, {"x": images.float().numpy()})[0])


def to_openvino(model, images):
    openvino = pytest.importorskip("openvino")
    example = images[0].float()
    graph = openvino.convert_model(copy.deepcopy(model).float(), example_input=example)
    graph = openvino.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: torch.from_numpy(graph(images.float().numpy())[0])


dynamo = partial(to_onnx, dynamo=True, **SHAPES)
older = partial(to_onnx, dynamo=False, dynamic_axes={"x": {0: "batch"}})


def refuse(to_graph, case, dense, model):
    with pytest.raises(UserError, match="cannot follow token pruning"):
        to_graph(Called(case, model))


CHECKS = {
    "save and load": (save_and_load, ALL),
    "other patches": (replace_patches, ALL),
    "another classifier": (partial(change, lambda model: model.reset_classifier(7)), TIMM),
    "another size": (partial(change, lambda model: model.set_input_size((112, 224))), TIMM),
    "checkpointing": (partial(compute_again, False), (*TIMM, *TRANSFORMERS, "open_clip")),
    # not Eva, whose blocks have arguments by name, which reentrant checkpointing refuses
    "reentrant checkpointing": (partial(compute_again, True), (*TIMM[:2], *TRANSFORMERS)),
    "torch.jit.trace": (partial(trace, torch.jit.trace), ALL),
    "torch.export": (partial(trace, export), ALL),
    "torch.onnx": (partial(trace, dynamo), ALL),
    "torch.onnx, the older exporter": (partial(trace, older), ALL),
    "OpenVINO": (partial(trace, to_openvino), ALL),
    "torch.jit.script": (partial(refuse, torch.jit.script), ALL),
    "torch.fx": (partial(refuse, torch.fx.symbolic_trace), ALL),
}
"""What is checked, and in which models. tests/vit_slim/test_slim.py has their forwards and backwards, image by image; the
libraries' distributions leave their own tests out."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("check", "name"), [(check, name) for check, (_, names) in CHECKS.items() for name in names]
)
def test_slimmed_models_pass_the_checks_of_their_libraries(check, name):
    case = CASES[name]
    dense = case.model()
    model = demo_sdtps.slim(copy.deepcopy(dense), *STAGES)
    CHECKS[check][0](case, dense, model)
