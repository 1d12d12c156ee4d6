"""MODEL: what the network is made of and what it computes."""

import shlex
from dataclasses import replace

import torch
from numeric import assert_close, tolerance
from pytest import approx
from tiny import ENCODER

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained
from demo_sdtps.modeling.losses import total_loss
from demo_sdtps.training.optim import make_optimizer
from effects.base import CAMERAS, LABELS, MARK, WIDTH, effect, images_of, is_near, model_of

HDM = ("MODEL.HDM", "True", "MODEL.HEAD", "4")


@effect("MODEL.TRANSFORMER_TYPE", {"test_vit": WIDTH, "vit_tiny_patch16_224": 192})
def width_of_the_tokens(cfg):
    return model_of(cfg).eval().forward_features(*images_of(cfg)).context.tokens["NI"].shape[2]


@effect("MODEL.MODALITIES", {"[RGB, NI, TI]": 3 * WIDTH, "[NI, TI]": 2 * WIDTH, "[TI]": WIDTH})
def columns_of_the_original_feature(cfg):
    images, cameras = images_of(cfg)
    return (
        model_of(cfg)
        .eval()({name: images[name] for name in cfg.MODEL.MODALITIES}, cameras, 1)
        .shape[1]
    )


@effect("MODEL.PATCH_SIZE", {"4": 32, "8": 7 * 3})
@effect("MODEL.STRIDE_SIZE", {"[4, 4]": 32, "[2, 4]": 15 * 4, "[4, 2]": 8 * 7})
def patches_of_an_image(cfg):
    return model_of(cfg).eval().forward_features(*images_of(cfg)).context.tokens["NI"].shape[1]


@effect(
    "MODEL.PRETRAIN_PATH_T",
    {"": False, "none": False, "{root}/backbone.pth": True},
    *shlex.split("MODEL.PATCH_SIZE 0 INPUT.SIZE_TRAIN [64,32] INPUT.SIZE_TEST [64,32]"),
)
def the_backbone_holds_the_files_weights(cfg):
    backbone = model_of(cfg).backbone
    load_pretrained(backbone, cfg.MODEL.TRANSFORMER_TYPE, cfg.MODEL.PRETRAIN_PATH_T)
    return bool(backbone.vit.norm.weight.eq(MARK).all())


@effect("MODEL.DROP_PATH", {"0.0": 0.0, "0.3": approx(0.3)})
def stochastic_depth_of_the_last_block(cfg):
    return getattr(model_of(cfg).backbone.vit.blocks[-1].drop_path2, "drop_prob", 0.0)


def is_random(model, cfg):
    with torch.no_grad():
        first, second = (
            model.forward_features(*images_of(cfg)).context.tokens["TI"] for _ in range(2)
        )
    return not torch.equal(first, second)


@effect("MODEL.DROP_OUT", {"0.0": (0.0, 0.0, False, False), "0.4": (0.4, 0.0, True, False)})
@effect("MODEL.ATT_DROP_RATE", {"0.0": (0.0, 0.0, False, False), "0.4": (0.0, 0.4, True, False)})
def dropout_in_mlps_and_attention_and_its_chance_in_training_and_evaluation(cfg):
    model = model_of(cfg)
    block = model.backbone.vit.blocks[2]
    return (
        block.mlp.drop2.p,
        block.attn.attn_drop.p,
        is_random(model.train(), cfg),
        is_random(model.eval(), cfg),
    )


@effect("MODEL.SIE_CAMERA", {"True": True, "False": False})
@torch.no_grad()
def the_camera_changes_the_features(cfg):
    model = model_of(cfg).eval()
    images, cameras = images_of(cfg)
    return not torch.equal(model(images, cameras), model(images, (cameras + 1) % CAMERAS))


@effect(
    "MODEL.SIE_COE",
    {"0.5": approx(0.5, rel=100 * tolerance(4)), "3.0": approx(3.0, rel=100 * tolerance(4))},
)
@torch.no_grad()
def share_of_the_cameras_embedding_in_the_tokens(cfg):
    """The rest of a token is less than a hundred times as long."""
    backbone = model_of(cfg).backbone.eval()
    backbone.camera_embedding.normal_()
    seen = []
    backbone.vit.pos_drop.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images = images_of(cfg)[0]["RGB"][:1]
    backbone(images.expand(2, -1, -1, -1), torch.tensor([2, 5]))
    first, second = seen[0].double()
    apart = (backbone.camera_embedding[5] - backbone.camera_embedding[2]).double().expand_as(first)
    return float((second - first).norm() / apart.norm())


@effect("MODEL.FROZEN", {"False": (True, True), "True": (False, True)})
def a_step_moves_the_backbones_weights_and_the_rest(cfg):
    model = model_of(cfg)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    optimizer = make_optimizer(cfg, model)
    total_loss(cfg, model.train()(*images_of(cfg)), LABELS, model.head_weights)[0].backward()
    optimizer.step()
    moved = {
        name for name, tensor in model.named_parameters() if not torch.equal(tensor, before[name])
    }
    # A BatchNorm's bias is fixed in any case.
    rest = {
        name
        for name in before
        if not name.startswith("backbone.vit.") and not name.endswith("bottleneck.bias")
    }
    return any(name.startswith("backbone.vit.") for name in moved), rest <= moved


@effect("MODEL.GLOBAL_LOCAL", {"False": True, "True": False})
@torch.no_grad()
def the_globals_are_the_class_tokens(cfg):
    model = model_of(cfg).eval()
    images, cameras = images_of(cfg)
    global_feats = model.forward_features(images, cameras).context.global_feats
    model.double()
    return all(
        is_near(global_feats[modality], model.backbone(image.double(), cameras)[1], *ENCODER)
        for modality, image in images.items()
    )


@effect("MODEL.DIRECT", {"1": [3 * WIDTH, 3 * WIDTH], "0": [3 * WIDTH, WIDTH, WIDTH, WIDTH]})
@effect("MODEL.USE_SDTPS", {"True": [3 * WIDTH, 3 * WIDTH], "False": [3 * WIDTH]})
@effect("MODEL.HDM", {"False": [3 * WIDTH, 3 * WIDTH], "True": [3 * WIDTH, 7 * WIDTH, 3 * WIDTH]})
def widths_of_the_training_features(cfg):
    return [
        feature.shape[1] for feature in model_of(cfg).train()(*images_of(cfg)).features.values()
    ]


@effect("MODEL.ATM", {"False": True, "True": False}, *HDM)
@torch.no_grad()
def the_enhanced_feature_is_hdms(cfg):
    model = model_of(cfg).eval()
    context = model.forward_features(*images_of(cfg)).context
    slimmed = {modality: selection.tokens for modality, selection in model.sdtps(context).items()}
    return torch.equal(
        model.forward_head(context)["moe"], model.hdm(slimmed, context.global_feats).flatten(1)
    )


@effect("MODEL.HEAD", {"4": 4, "8": 8}, *HDM, "MODEL.ATM", "True")
@torch.no_grad()
def heads_of_the_gates(cfg):
    gates = model_of(cfg).eval().atmoe.gates(torch.randn(3, 7, WIDTH))
    assert_close(gates.double().sum(2), torch.ones(3, gates.shape[1]), 7)
    return gates.shape[1]


def slimmed(model, cfg):
    """Slimmed tokens and decision masks of all modalities, (3, 4, …)."""
    context = model.forward_features(*images_of(cfg)).context
    selections = model.sdtps(context).values()
    return [
        torch.stack([getattr(selection, part) for selection in selections])
        for part in ("tokens", "mask")
    ]


@effect("MODEL.SDTPS_SPARSE_RATIO", {"0.5": {16.0}, "0.25": {8.0}})
@torch.no_grad()
def kept_patches(cfg):
    return set(slimmed(model_of(cfg), cfg)[1].sum(2).unique().tolist())


@effect("MODEL.SDTPS_AGGR_RATIO", {"0.4": 6 + 1, "0.8": 12 + 1})
@torch.no_grad()
def slimmed_tokens(cfg):
    return slimmed(model_of(cfg), cfg)[0].shape[2]


@effect("MODEL.SDTPS_BETA", {"0.0": (True, False), "0.25": (True, True), "0.5": (False, True)})
@torch.no_grad()
def mlp_and_globals_matter_for_the_choice(cfg):
    model = model_of(cfg).eval()
    context = model.forward_features(*images_of(cfg)).context
    chosen = model.sdtps(context)["TI"].mask
    others = {
        modality: torch.randn_like(feature) for modality, feature in context.global_feats.items()
    }
    by_others = model.sdtps(replace(context, global_feats=others))["TI"].mask
    for parameter in model.sdtps.tir_sparse.score_predictor.parameters():
        parameter.normal_()
    return not torch.equal(model.sdtps(context)["TI"].mask, chosen), not torch.equal(
        by_others, chosen
    )


@effect("MODEL.SDTPS_USE_GUMBEL", {"False": False, "True": True})
def the_masks_have_a_gradient(cfg):
    return slimmed(model_of(cfg).train(), cfg)[1].requires_grad


@effect("MODEL.SDTPS_GUMBEL_TAU", {"1.0": True, "1e6": False}, "MODEL.SDTPS_USE_GUMBEL", "True")
def the_masks_gradient_is_felt(cfg):
    """The hotter, the weaker: the derivative of softmax(score / tau) falls with tau."""
    model = model_of(cfg).train()
    masks = slimmed(model, cfg)[1]
    (masks * torch.randn_like(masks)).sum().backward()
    return float(model.sdtps.rgb_sparse.score_predictor[2].weight.grad.norm()) > 1e-5


@effect(
    "MODEL.SDTPS_GUMBEL_SELECT",
    {"False": [True, True], "True": [False, True]},
    "MODEL.SDTPS_USE_GUMBEL",
    "True",
)
@torch.no_grad()
def the_same_patches_are_kept_again_in_training_and_in_evaluation(cfg):
    model = model_of(cfg).eval()
    context = model.forward_features(*images_of(cfg)).context
    found = []
    for is_training in (True, False):
        model.sdtps.train(is_training)
        first, second = (model.sdtps(context)["TI"].mask for _ in range(2))
        found.append(torch.equal(first, second))
    return found


@effect("MODEL.SDTPS_FEEDS_HDM", {"True": True, "False": False}, "MODEL.HDM", "True")
@torch.no_grad()
def hdm_is_given_the_tokens_of_sdtps(cfg):
    model = model_of(cfg).eval()
    context = model.forward_features(*images_of(cfg)).context
    selected = {modality: selection.tokens for modality, selection in model.sdtps(context).items()}
    by_selected, by_all = (
        model.hdm(patches, context.global_feats).flatten(1)
        for patches in (selected, context.tokens)
    )
    found = model.forward_head(context)["moe"]
    assert torch.equal(found, by_selected) != torch.equal(found, by_all)
    return torch.equal(found, by_selected)


@effect("MODEL.SDTPS_GUIDE_MISSING", {"True": {*MODALITIES}, "False": {"NI"}})
@torch.no_grad()
def whose_choice_follows_the_missing_modalitys_global(cfg):
    model = model_of(cfg).eval()
    context = model.forward_features(*images_of(cfg)).context
    others = {**context.global_feats, "NI": torch.randn_like(context.global_feats["NI"])}
    before, after = (
        model.sdtps(
            replace(context, missing={"NI": torch.ones(4, 1, dtype=torch.bool)}, global_feats=given)
        )
        for given in (context.global_feats, others)
    )
    return {
        modality
        for modality in MODALITIES
        if not torch.equal(before[modality].mask, after[modality].mask)
    }
