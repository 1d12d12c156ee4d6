"""What the tests of the plug-in share: inputs and features of models of the miniature (reference/demo_host)."""

import torch
from numeric import shift_seed
from tiny import BLOCK, ROOT

import demo_sdtps

HOST = ROOT / "tests" / "reference" / "demo_host"
NAMES = ("RGB", "NI", "TI")
WIDTH, CLASSES, CAMERAS, SIZE = 64, 5, 4, [64, 32]
SDTPS_PATH = (WIDTH, WIDTH, WIDTH // 4, 40, WIDTH, WIDTH, WIDTH // 5, 40, 40)
"""Lengths of the sums (numeric.py) in SDTPS of up to 40 patches: norms, cosines, scores and the softmax of those dropped;
norm, MLP, softmax and means of those kept."""
PATH = (
    3 * 16 * 16,
    *4 * BLOCK,
    WIDTH,
    WIDTH,
    2 * WIDTH,
    *SDTPS_PATH,
    40,
    *2 * (WIDTH, WIDTH, WIDTH, 3 * 41, 3 * 41, WIDTH),
    7 * WIDTH,
)
"""… and from images to features: patches, four blocks, norm and projection, PIFE, SDTPS and its means, HDM and ATMoE."""


def patched(host, size, *opts):
    """A patched model of KEY, VALUE, … options, the same for the same options."""
    defaults, make_model = host
    cfg = demo_sdtps.add_config(defaults.clone())
    cfg.merge_from_list(["INPUT.SIZE_TRAIN", size, *opts])
    torch.manual_seed(shift_seed())
    return demo_sdtps.patch(make_model(cfg, CLASSES, CAMERAS), cfg)


def images(batch, seed=0, size=SIZE):
    torch.manual_seed(shift_seed(seed))
    return {name: torch.randn(batch, 3, *size) for name in NAMES}


def features(model, inputs, cameras=None):
    """Those of the three return patterns."""
    cameras = torch.zeros(len(inputs["RGB"]), dtype=torch.long) if cameras is None else cameras
    with torch.no_grad():
        return [
            model.eval()(inputs, cam_label=cameras, return_pattern=pattern) for pattern in (1, 2, 3)
        ]


def equal(features, others):
    return all(torch.equal(one, other) for one, other in zip(features, others, strict=True))


def make_replicas(model, count):
    """Replicas as nn.DataParallel makes them on GPUs: the modules' shallow copies, which share hooks, with own weights."""
    modules = list(model.modules())
    index = {module: place for place, module in enumerate(modules)}
    replicas = []
    for _ in range(count):
        copies = [module._replicate_for_data_parallel() for module in modules]
        for module, replica in zip(modules, copies, strict=True):
            for name, child in module._modules.items():
                setattr(replica, name, copies[index[child]])
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                setattr(replica, name, None if tensor is None else tensor.detach().clone())
        replicas.append(copies[0])
    return replicas
