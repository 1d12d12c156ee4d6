"""Miniatures of code bases that the plug-in knows, one for each way of theirs: our code, with the names of their models."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.reference.host_towers import CLASSES, GRID, NAMES, WIDTH, Backbone, BatchFirst, Tower


class Host(nn.Module):
    """A model of three images. Its training forward returns what `loss`, the host's loop, adds up."""

    order, orders = NAMES, NAMES  # of the images in training and in evaluation
    restored, suffix = False, 0

    def __init__(self, miss=""):
        super().__init__()
        self.miss, self.feat_dim, self.num_classes = miss, WIDTH, CLASSES
        self.classifier = nn.Linear(3 * WIDTH, CLASSES)
        self.build()

    def build(self):
        self.BACKBONE = Backbone()

    def given(self, x):
        """The images in the host's order; those of modalities that miss in evaluation are new zeros."""
        return {
            name: torch.zeros_like(x[name])
            if not self.training and name[0].lower() in self.miss
            else x[name]
            for name in (self.order if self.training else self.orders)
        }

    def pair(self, feature):
        return self.classifier(feature), feature

    def loss(self, output):
        pairs = zip(output[::2], output[1::2], strict=False)
        total = sum(
            F.cross_entropy(logits, torch.arange(len(logits))) + feature.square().mean()
            for logits, feature in pairs
        )
        return total + (output[-1] if len(output) % 2 else 0)

    def forward(self, x, label=None, cam_label=None, view_label=None):
        return self.finish({name: self.BACKBONE(image)[1] for name, image in self.given(x).items()})

    def finish(self, outputs, *tail):
        feature = torch.cat([outputs[name] for name in NAMES], dim=-1)
        return (*self.pair(feature), *tail) if self.training else feature


class UGG(Host):
    """Noise in evaluation; the loop scales its own loss."""

    def loss(self, output):
        return super().loss(output[:-1]) + 0.1 * output[-1]

    def forward(
        self, x, label=None, cam_label=None, view_label=None, return_pattern=3, img_path=None
    ):
        outputs = {name: self.BACKBONE(image) for name, image in self.given(x).items()}
        fused = sum(patches.mean(1) for patches, _ in outputs.values())
        output = self.finish(
            {name: whole for name, (_, whole) in outputs.items()}, fused.square().mean()
        )
        fused = fused + 0.1 * torch.randn_like(fused)
        return (
            output
            if self.training
            else {1: output, 2: fused}.get(return_pattern, torch.cat([output, fused], -1))
        )


class Reshaping(Host):
    """The patches must be the grid."""

    restored = True

    def build(self):
        super().build()
        self.smooth = nn.Conv2d(WIDTH, WIDTH, 3)

    def on_grid(self, tokens):
        patches, whole = tokens
        return whole + self.smooth(patches.mT.reshape(len(patches), WIDTH, *GRID)).mean((2, 3))


class Signal(Reshaping):
    """Its mode is an argument; a sign stands before the pair."""

    def build(self):
        super().build()
        self.clip_vision_encoder = self._modules.pop("BACKBONE")

    def loss(self, output):
        sign, *output = output
        assert sign == 1
        return super().loss(output)

    def forward(self, x, label=None, cam_label=None, view_label=None, training=True, sge="CLS"):
        feature = torch.cat(
            [self.on_grid(self.clip_vision_encoder(image)) for image in self.given(x).values()], -1
        )
        return (1, *self.pair(feature), feature.square().mean()) if training else feature


class MFRNet(Host):
    """All modalities in one call."""

    def forward(self, x, label=None, cam_label=None, view_label=None):
        _, whole = self.BACKBONE(torch.cat(list(self.given(x).values())))
        return self.finish(dict(zip(NAMES, whole.chunk(3), strict=True)), whole.square().mean())


class MDReID(Host):
    """… without those that miss; a token that the modalities share stands behind the class token."""

    def build(self):
        self.BACKBONE = Backbone(Tower(prefix=2))

    def forward(self, x, label=None, cam_label=None, view_label=None):
        images = {
            name: image
            for name, image in x.items()
            if self.training or name[0].lower() not in self.miss
        }
        whole = self.BACKBONE(torch.cat(list(images.values())))[1].chunk(len(images))
        return self.pair(torch.cat(whole, -1)) if self.training else torch.cat(whole, -1)


class IDEA(Reshaping):
    """A text's token stands behind the patches; another order in evaluation."""

    orders, suffix = ("NI", "RGB", "TI"), 1

    def build(self):
        super().build()
        self.BACKBONE = Backbone(is_clip=True)

    def forward(self, image, text=None, label=None):
        tokens = {
            name: self.BACKBONE(own, last=text[name]) for name, own in self.given(image).items()
        }
        return self.finish(
            {
                name: self.on_grid((patches[:, :-1], whole + patches[:, -1]))
                for name, (patches, whole) in tokens.items()
            }
        )


class TOPReID(Host):
    """A backbone for each modality; a loss compares the places of the modalities."""

    order = orders = ("NI", "TI", "RGB")

    def build(self):
        self.NI, self.TI, self.RGB = (Backbone(Tower(BatchFirst)) for _ in NAMES)

    def forward(self, x, label=None, cam_label=None, view_label=None):
        tokens = {name: getattr(self, name)(image) for name, image in self.given(x).items()}
        return self.finish(
            {name: whole + patches.mean(1) for name, (patches, whole) in tokens.items()},
            F.mse_loss(tokens["RGB"][0], tokens["NI"][0]),
        )


class Uni_modal(Host):  # noqa: N801 (UPCL's name)
    """A second image of one modality in training."""

    order = ("RGB", "RGB1", "NI", "TI")

    def loss(self, output):
        pair, (other, _) = output
        return super().loss(pair) + other.square().mean()

    def forward(self, x, label=None, cam_label=None, view_label=None):
        outputs = {name: self.BACKBONE(image)[1] for name, image in self.given(x).items()}
        return (
            (self.finish(outputs), (outputs["RGB1"], outputs["RGB"]))
            if self.training
            else self.finish(outputs)
        )


class EDITOR(Host):
    """Refused by its name."""


HOSTS = {
    kind.__name__: kind for kind in (UGG, Signal, MFRNet, MDReID, IDEA, TOPReID, Uni_modal, EDITOR)
}
