"""Model and loss are one graph for torch.compile (MODEL.COMPILE on a GPU)."""

import shlex

import pytest
import torch
from tiny import random_images, tiny_cfg, tiny_model

from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.modeling.precision import inference
from demo_sdtps.training.reid import ReIDLoss, Teacher

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shallow")]

SLIM = shlex.split(
    "MODEL.SLIM_BLOCKS [0,1] MODEL.SLIM_KEEP [0.5,0.5] INPUT.JOINT_AUGMENTATION True MODEL.USE_SDTPS False"
)
FUSION = ["MODEL.USE_SDTPS", "False", "MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4"]
CENTERS = ["MODEL.METRIC_LOSS_TYPE", "triplet_center", "MODEL.DIRECT", "0"]
CASES = {"dense": (*FUSION, *CENTERS), "SDTPS": ()} | {
    "saliency": SLIM,
    "learned": (*SLIM, "MODEL.SLIM_SCORE", "learned:Learned"),
}
QUICK = "SDTPS", "learned"
CASES["distilled"] = (*CASES["learned"], *FUSION)


def compile_whole(*modules):
    """Without a compiler behind it; a break of the graph is an error. → the graphs to come."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for module in modules:
        module.compile(backend=backend, fullgraph=True, dynamic=False)
    return graphs


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name not in QUICK)) for name in CASES],
)
def test_model_and_loss_are_one_graph(name):
    """In training and in evaluation, with the results of no graph to the last bit."""
    plain, model = (tiny_model(*CASES[name]) for _ in range(2))
    cfg, (images, cameras) = tiny_cfg(*CASES[name]), random_images(1)
    batch = Batch(images, torch.tensor([0, 0, 1, 1]), cameras)
    teacher, losses = None, []
    if name == "distilled":
        dense = tiny_model(*FUSION, seed=1).eval().requires_grad_(False)
        teacher = Teacher(tiny_cfg(*FUSION), dense, ["original", "moe"])
    for each in (plain, model):
        torch.manual_seed(0)
        loss = ReIDLoss(cfg, each.train(), teacher)
        losses.append(loss)
    graphs = compile_whole(model, losses[1])
    results = []
    for loss in losses:
        torch.manual_seed(1)
        results.append(loss(batch))
        results[-1].mean.backward()
    assert torch.equal(results[0].mean, results[1].mean)
    assert results[0].sums == results[1].sums
    assert all(
        one.grad is other.grad or torch.equal(one.grad, other.grad)
        for one, other in zip(plain.parameters(), model.parameters(), strict=True)
    )
    with inference(plain, None), inference(model, None):
        assert torch.equal(plain(images, cameras), model(images, cameras))
    assert len(graphs) == 2


def test_weights_that_are_cast_anew_run_the_code_of_those_before():
    model, (images, cameras) = tiny_model(*CASES["learned"]), random_images(1)
    graphs = compile_whole(model)
    features = []
    for _ in range(2):
        with inference(model, torch.bfloat16):
            features.append(model(images, cameras))
        with torch.no_grad():
            model.backbone.vit.norm.weight.mul_(2)
    assert len(graphs) == 1 and not torch.equal(*features)
