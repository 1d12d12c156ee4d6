"""The SEPS model (docs/seps.md): images → patch tokens by a timm model, captions → word vectors by a BERT, and the network that
compares every image with every caption."""

import sys
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from demo_sdtps.modeling.checkpoints.pretrained import Weights, load_tower
from demo_sdtps.runtime.errors import UserError, check_extra
from seps.network import CrossSparseAggrNet


class ImageTower(nn.Module):
    """timm model with a grid of patch tokens and at most one class token, and a projection; `num_patches` is N."""

    def __init__(self, cfg: CfgNode):
        super().__init__()
        model, size = cfg.MODEL, list(cfg.INPUT.SIZE)
        self.name = name = model.TRANSFORMER_TYPE
        options = {"patch_size": model.PATCH_SIZE} if model.PATCH_SIZE else {}
        options |= {"img_size": tuple(size), "drop_path_rate": model.DROP_PATH}
        try:
            tower: Any = timm.create_model(name, num_classes=0, global_pool="", **options)
            self.tower = tower.eval()  # no random draws such as those of stochastic depth
            self.projection = nn.Linear(tower.num_features, model.EMBED_SIZE)
            with torch.no_grad():
                tokens = self._tokens(torch.zeros(1, 3, *size))
            # Vision Transformers declare the number of tokens before the patches; Swin Transformers have none.
            prefix = getattr(tower, "num_prefix_tokens", 0)
            if prefix > 1 or tokens.ndim != 3 or tokens.shape[2] != tower.num_features:
                raise ValueError("its tokens are not patches with one class token or none")
        except Exception as error:  # timm raises many types for sizes that do not fit
            raise UserError(
                f"MODEL.TRANSFORMER_TYPE {name!r} does not fit INPUT.SIZE {size} and MODEL.PATCH_SIZE {model.PATCH_SIZE} "
                f"({' '.join(str(error).split())}); change them, or choose another such as 'vit_base_patch16_224' or "
                "'swin_base_patch4_window7_224'."
            ) from None
        tower.train()
        self.num_patches = tokens.shape[1] - prefix

    def forward(self, images: Tensor) -> Tensor:
        """images (B, 3, H, W) → tokens (B, N, C), or (B, 1 + N, C) where the model has a class token."""
        return self.projection(self._tokens(images))

    def load(self, source: str) -> str:
        """`load_tower` of MODEL.PRETRAIN_PATH_T; timm converts names and resizes position embeddings."""

        def convert(weights: Weights) -> Weights:
            rename = getattr(sys.modules[type(self.tower).__module__], "checkpoint_filter_fn", None)
            return rename(weights, self.tower) if rename else weights

        return load_tower(self.tower, self.name, source, convert)

    def _tokens(self, images: Tensor) -> Tensor:
        tokens = self.tower.forward_features(images)
        return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens  # of a Swin (B, H, W, C)


class TextTower(nn.Module):
    """BERT of MODEL.TEXT_TOWER without its pooling layer, and a projection. Without `pretrained` all weights are random."""

    def __init__(self, cfg: CfgNode, pretrained: bool):
        super().__init__()
        name = cfg.MODEL.TEXT_TOWER
        if pretrained:
            options = {"output_loading_info": True, "add_pooling_layer": False}
            bert, loading = _read_pretrained("BertModel", name, **options)
            if missing := sorted(loading["missing_keys"]):
                raise UserError(
                    f"MODEL.TEXT_TOWER {name} is no BERT, or lacks {missing[0]}, …; give another folder or name."
                )
        else:
            config = _read_pretrained("BertConfig", name)
            from transformers import BertModel

            bert = BertModel(config, add_pooling_layer=False)
        self.tower = bert.float()
        self.projection = nn.Linear(bert.config.hidden_size, cfg.MODEL.EMBED_SIZE)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Token ids (B, L), lengths (B,) on their device or the CPU → word vectors (B, L, C), meaningless beyond a length."""
        counts = lengths.to(words.device, non_blocking=True)[:, None]
        mask = torch.arange(words.shape[1], device=words.device) < counts
        output = self.tower(input_ids=words, attention_mask=mask.long())
        return self.projection(output.last_hidden_state)


def load_tokenizer(cfg: CfgNode) -> Any:
    """Tokenizer of MODEL.TEXT_TOWER."""
    name = cfg.MODEL.TEXT_TOWER
    # without one of these files transformers makes a tokenizer with an empty vocabulary
    files = [Path(name, file) for file in ("tokenizer.json", "vocab.txt")]
    if Path(name).is_dir() and not any(map(Path.is_file, files)):
        raise UserError(
            f"MODEL.TEXT_TOWER {name} is a folder without a tokenizer; give one with a BERT and its tokenizer."
        )
    return _read_pretrained("AutoTokenizer", name)


def _read_pretrained(kind: str, name: str, **options: Any) -> Any:
    """`from_pretrained` of a class of transformers, which executes no code of the folder or repository."""
    check_extra("The text tower", "seps", {"transformers": "transformers"})
    import transformers  # slow, and optional

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        load = getattr(transformers, kind).from_pretrained
        return load(name, trust_remote_code=False, **options)
    except Exception as error:  # transformers raises many types of errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"MODEL.TEXT_TOWER {name} cannot be read ({reason}); give a folder with a BERT and its tokenizer, or a name that "
            "the Hugging Face hub knows, with network access."
        ) from None


class SEPS(nn.Module):
    """Images and captions → similarities; the network normalises the tokens."""

    def __init__(self, image_tower: ImageTower, text_tower: TextTower, network: CrossSparseAggrNet):
        super().__init__()
        self.image_tower, self.text_tower, self.network = image_tower, text_tower, network

    def forward(self, images: Tensor, *texts: Tensor) -> Tensor | tuple[Tensor, Any]:
        """images (B_v, 3, H, W); token ids (B_t, L) and lengths (B_t,) of captions, then of long captions, if any →
        (B_v, B_t), in training with masks. Lengths on the CPU spare a GPU the waiting for their largest."""
        captions, lengths, *long = texts
        with torch.no_grad():  # the network passes no gradient to long captions
            long_texts = [self.text_tower(*long), long[1]] if long else []
        tokens = self.image_tower(images)
        return self.network(tokens, self.text_tower(captions, lengths), lengths, *long_texts)


def make_seps(cfg: CfgNode, pretrained: bool = True) -> tuple[SEPS, str]:
    """Model of a configuration, and a report of the origin of its weights. Without `pretrained` all weights are random, to be
    filled from a checkpoint."""
    model, image_tower, text_tower = cfg.MODEL, ImageTower(cfg), TextTower(cfg, pretrained)
    report = image_tower.load(model.PRETRAIN_PATH_T) if pretrained else ""
    patches, ratios = image_tower.num_patches, (model.SDTPS_SPARSE_RATIO, model.SDTPS_AGGR_RATIO)
    keys = (
        "PAPER_VERSION",
        "TOP_K",
        "SDTPS_USE_GUMBEL",
        "SDTPS_GUMBEL_TAU",
        "DUAL_AGGR",
        "SDTPS_BETA",
    )
    settings = [model[key] for key in keys]
    try:
        network = CrossSparseAggrNet(model.EMBED_SIZE, patches, *ratios, *settings)
    except ValueError as error:  # the ratios leave no patch
        raise UserError(f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO: {error}") from None
    return SEPS(image_tower, text_tower, network), report
