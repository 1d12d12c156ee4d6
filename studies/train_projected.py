"""train_net.py with a layer of its own for SDTPS: every slimmed token passes what PIFE has for the globals before the mean.

An experiment of studies/diagnosis.yml, not a part of the method: LayerNorm → Linear(C → C) → quick GELU, one per modality.
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps

    sys.path[:] = [folder for folder in sys.path if folder not in (str(ROOT), str(Path(__file__).resolve().parent))]

from timm.layers import QuickGELU
from torch import nn

import demo_sdtps.modeling.demo
from demo_sdtps import train_net
from demo_sdtps.config.cli import run
from demo_sdtps.modeling.sdtps import STATE_NAMES, MultiModalSDTPS


class ProjectedSDTPS(MultiModalSDTPS):
    def __init__(self, embed_dim, *arguments, **options):
        super().__init__(embed_dim, *arguments, **options)
        self.project = nn.ModuleList(nn.Sequential(nn.LayerNorm(embed_dim), nn.Linear(embed_dim, embed_dim), QuickGELU())
                                     for _ in STATE_NAMES)

    def forward(self, *tokens, **options):
        outputs = super().forward(*tokens, **options)
        count = len(self.project)
        return *(layer(slimmed) for layer, slimmed in zip(self.project, outputs[:count], strict=True)), *outputs[count:]


if __name__ == "__main__":
    demo_sdtps.modeling.demo.MultiModalSDTPS = ProjectedSDTPS
    run(train_net.main)
