"""The features of each return pattern by the parts of the model."""

import torch
from tiny import PATCHES, WIDTH, exact

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.checkpoints.names import to_demo
from tests.reference import sdtps as reference
from tests.reference.fusion import Fusion

B, C = 8, WIDTH


KEPT_TOKENS = 6 + 1


def by_hand(model, images, cameras):
    """(patch tokens, globals) by modality in float64, from one backbone call for each, with PIFE as a formula."""
    model, images = exact(model, images)
    patches, global_feats = {}, {}
    for modality in MODALITIES:
        patches[modality], class_token = model.backbone(images[modality], cameras)
        global_feats[modality] = class_token
        if model.pife:
            norm, linear, _ = model.pife.reduce[modality]
            mixed = torch.cat([class_token, patches[modality].sum(dim=1) / PATCHES], dim=1)
            mixed = (mixed - mixed.mean(1, keepdim=True)) / (
                mixed.var(1, unbiased=False, keepdim=True) + 1e-5
            ).sqrt()
            hidden = (mixed * norm.weight + norm.bias) @ linear.weight.T + linear.bias
            global_feats[modality] = hidden * torch.sigmoid(1.702 * hidden)
    return patches, global_feats


def reference_fusion(model):
    """The model's HDM and ATMoE in float64, as seven attentions and an expert after the other."""
    plain = Fusion(C, model.atmoe.heads if model.atmoe else None, dropout=0.0)
    weights, prefix = to_demo(model.state_dict()), "generalFusion."
    names = {name.removeprefix(prefix): name for name in weights if name.startswith(prefix)}
    plain.load_state_dict({short: weights[name] for short, name in names.items()})
    return plain.double().train(model.training)


def expected_features(model, images, cameras):
    """Features in float64 in the heads' order: SDTPS (B, 3C), MoE (B, 7C), the original (B, 3C) or (B, C) per modality."""
    patches, global_feats = by_hand(model, images, cameras)
    features = []
    if model.sdtps:
        weights = {name: tensor.double() for name, tensor in model.sdtps.state_dict().items()}
        tokens = list(patches.values()), list(global_feats.values())
        slimmed, _ = reference.sdtps(weights, *tokens, 0.5, 0.4, 0.25)
        assert all(tokens.shape == (len(cameras), KEPT_TOKENS, C) for tokens in slimmed)
        features.append(torch.cat([tokens.sum(dim=1) / KEPT_TOKENS for tokens in slimmed], dim=1))
        patches = dict(zip(MODALITIES, slimmed, strict=True))
    if model.hdm:
        features.append(reference_fusion(model)(patches, global_feats))
    original = list(global_feats.values())
    return features + ([torch.cat(original, dim=1)] if model.one_head else original)


def expected_patterns(model, images, cameras):
    """The return patterns in float64."""
    features, count = expected_features(model, images, cameras), len(model.layout.enhanced)
    enhanced, original = features[:count], torch.cat(features[count:], dim=1)
    return {
        1: original,
        2: torch.cat(enhanced or [original], dim=1),
        3: torch.cat([original, *enhanced], dim=1),
    }
