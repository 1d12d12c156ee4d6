"""Miniatures of code bases that the plug-in knows, one for each way of theirs: our code, with the names of their models."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.reference.demo import Block

WIDTH, HEADS, DEPTH, PATCH, GRID, CLASSES = 16, 2, 4, 16, (8, 4), 5
SIZE, PATCHES = (GRID[0] * PATCH, GRID[1] * PATCH), GRID[0] * GRID[1]
NAMES = ("RGB", "NI", "TI")


class Tower(nn.Module):
    """Images (B, 3, H, W) → tokens (B, L, C): `prefix` first, `last` (B, C) after the patches."""

    def __init__(self, prefix=1, tokens_first=True):
        super().__init__()
        self.prefix, self.tokens_first = prefix, tokens_first
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(prefix, WIDTH))
        self.positional_embedding = nn.Parameter(0.3 * torch.randn(prefix + PATCHES, WIDTH))
        blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(DEPTH)))
        if tokens_first:
            self.transformer = nn.Module()
            self.transformer.resblocks = blocks
        else:
            self.blocks = blocks
            for block in blocks:
                block.attn.batch_first = True

    def forward(self, images, last=None):
        patches = self.conv1(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(images), -1, -1), patches], dim=1)
        x = x + self.positional_embedding
        x = x if last is None else torch.cat([x, last.unsqueeze(1)], dim=1)
        if not self.tokens_first:
            return self.blocks(x)
        return self.transformer.resblocks(x.transpose(0, 1)).transpose(0, 1)


class Backbone(nn.Module):
    """→ patches and class token; `is_clip` has the tower beside that of the text."""

    def __init__(self, tower=None, is_clip=False):
        super().__init__()
        self.base = nn.ModuleDict({"visual": Tower()}) if is_clip else tower or Tower()

    def forward(self, *inputs, **named):
        tower = self.base["visual"] if isinstance(self.base, nn.ModuleDict) else self.base
        tokens = tower(*inputs, **named)
        return tokens[:, tower.prefix :], tokens[:, 0]


class Host(nn.Module):
    """A model of three images. Its training forward returns what `loss`, the host's loop, adds up."""

    order, orders = NAMES, NAMES  # of the images in training and in evaluation

    def __init__(self, miss=""):
        super().__init__()
        self.miss, self.feat_dim, self.num_classes = miss, WIDTH, CLASSES
        self.classifier = nn.Linear(3 * WIDTH, CLASSES)
        self.build()

    def build(self):
        self.BACKBONE = Backbone()

    def encoded_images(self, x):
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
        return self.encode(self.encoded_images(x))

    def encode(self, images):
        return self.finish({name: self.BACKBONE(image)[1] for name, image in images.items()})

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
        outputs = {name: self.BACKBONE(image) for name, image in self.encoded_images(x).items()}
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
            [
                self.on_grid(self.clip_vision_encoder(image))
                for image in self.encoded_images(x).values()
            ],
            -1,
        )
        return (1, *self.pair(feature), feature.square().mean()) if training else feature


class MFRNet(Host):
    """All modalities in one call."""

    def encode(self, images):
        _, whole = self.BACKBONE(torch.cat(list(images.values())))
        return self.finish(dict(zip(NAMES, whole.chunk(3), strict=True)), whole.square().mean())


class MDReID(Host):
    """… without those that miss; a token that the modalities share stands after the class token."""

    def build(self):
        self.BACKBONE = Backbone(Tower(prefix=2))

    def encoded_images(self, x):
        return {
            name: image
            for name, image in x.items()
            if self.training or name[0].lower() not in self.miss
        }

    def encode(self, images):
        whole = self.BACKBONE(torch.cat(list(images.values())))[1].chunk(len(images))
        return self.pair(torch.cat(whole, -1)) if self.training else torch.cat(whole, -1)


class IDEA(Reshaping):
    """A text's token stands after the patches; another order in evaluation."""

    orders = ("NI", "RGB", "TI")

    def build(self):
        super().build()
        self.BACKBONE = Backbone(is_clip=True)

    def forward(self, image, text=None, label=None):
        tokens = {
            name: self.BACKBONE(picture, last=text[name])
            for name, picture in self.encoded_images(image).items()
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
        self.NI, self.TI, self.RGB = (Backbone(Tower(tokens_first=False)) for _ in NAMES)

    def encode(self, images):
        tokens = {name: getattr(self, name)(image) for name, image in images.items()}
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

    def encode(self, images):
        outputs = {name: self.BACKBONE(image)[1] for name, image in images.items()}
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
