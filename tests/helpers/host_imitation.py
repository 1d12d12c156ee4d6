"""What stands in place of a GPU, of weights and of packages that the hosts of host_models.py ask for."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCAN = "mamba_ssm.ops.selective_scan_interface"


def imitate():
    """A CPU answers in place of a GPU, random weights in place of files and of CLIP's."""
    for owner in (Tensor, nn.Module):
        owner.cuda = lambda self, *args, **kwargs: self
        owner.to = without_cuda(owner.to)
    torch.cuda.synchronize = lambda *args: None
    torch.jit.load = lambda *args, **kwargs: SimpleNamespace(
        eval=lambda: SimpleNamespace(state_dict=random_clip)
    )
    # of setuptools below 82; EDITOR's wavelets name it
    for name, attributes in {
        "cv2": {},
        "tutel": {"moe": SimpleNamespace(moe_layer=Experts)},
        SCAN: {"selective_scan_fn": selective_scan, "selective_scan_ref": selective_scan},
        "pkg_resources": {"resource_stream": None},
    }.items():
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            stub(name, **attributes)


def without_cuda(to):
    def move(self, *args, **kwargs):
        return (
            self
            if args and (type(args[0]) is int or str(args[0]).startswith("cuda"))
            else to(self, *args, **kwargs)
        )

    return move


def stub(name, **attributes):
    """A module in place of one that is not there."""
    sys.modules[name] = MagicMock(name=name) if name == "cv2" else ModuleType(name)
    vars(sys.modules[name]).update(attributes)


def random_clip():
    """The entries of CLIP's ViT-B/16 from which `build_model` reads sizes; it leaves the others at its own random start."""
    shapes = {
        "visual.conv1.weight": (768, 3, 16, 16),
        "visual.positional_embedding": (197, 768),
        "visual.proj": (768, 512),
        "positional_embedding": (77, 512),
        "token_embedding.weight": (49408, 512),
        "ln_final.weight": (512,),
        "text_projection": (512, 512),
    }
    for block in range(12):
        shapes[f"visual.transformer.resblocks.{block}.attn.in_proj_weight"] = (2304, 768)
        shapes[f"transformer.resblocks.{block}.attn.in_proj_weight"] = (1536, 512)
    return {name: 0.03 * torch.randn(shape) for name, shape in shapes.items()}


class Experts(nn.Module):
    """tutel's mixture: every token goes to the expert of its highest gate. There is no capacity, so no token is dropped."""

    def __init__(self, experts, model_dim, **options):
        super().__init__()
        self.gate = nn.Linear(model_dim, experts["count_per_node"])
        self.experts = experts["module"](
            model_dim, experts["count_per_node"], 1, experts["my_config"]
        )
        self.sharded_count, self.l_aux = 1, None

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        score, chosen = gates.max(-1)
        share = F.one_hot(chosen, gates.shape[-1]).to(x.dtype)
        self.l_aux = (
            gates.shape[-1] * (gates.flatten(0, -2).mean(0) * share.flatten(0, -2).mean(0)).sum()
        )
        return self.experts(x, self) * score[..., None]


def selective_scan(u, delta, A, B, C, D, delta_bias, delta_softplus):  # noqa: N803 (mamba_ssm's names)
    """Mamba's recurrence, step by step. u, delta: (N, D, L); A: (D, S); B, C: (N, S, L)."""
    delta, state, outputs = F.softplus(delta + delta_bias[:, None]), 0, []
    for i in range(u.shape[-1]):
        step = delta[..., i, None]
        state = torch.exp(step * A) * state + step * u[..., i, None] * B[:, None, :, i]
        outputs.append((state * C[:, None, :, i]).sum(-1))
    return torch.stack(outputs, -1) + D[:, None] * u
