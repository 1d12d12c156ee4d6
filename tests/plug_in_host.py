"""What the tests of the plug-in share: inputs and features of models of the miniature (reference/demo_host)."""
import torch

NAMES = ("RGB", "NI", "TI")
WIDTH, CLASSES = 64, 5


def images(batch, seed=0):
    torch.manual_seed(seed)
    return {name: torch.randn(batch, 3, 64, 32) for name in NAMES}


def features(model, given):
    with torch.no_grad():
        return [model.eval()(given, cam_label=torch.zeros(len(given["RGB"]), dtype=torch.long), return_pattern=pattern)
                for pattern in (1, 2, 3)]


def equal(features, others):
    return all(torch.equal(one, other) for one, other in zip(features, others, strict=True))


def replicas_of(model, count):
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
