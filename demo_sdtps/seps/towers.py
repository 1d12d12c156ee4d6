"""Towers of SEPS (docs/seps.md): images → patch tokens by a timm model, captions → word vectors by a BERT."""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import timm
import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.modeling.checkpoints.pretrained import OTHERS, RANDOM, fill, read_source
from demo_sdtps.runtime.errors import check_extra

if TYPE_CHECKING:
    from transformers import BertConfig, BertModel, PreTrainedTokenizerBase

VOCABULARY = ("tokenizer.json", "vocab.txt")
"""Files of a tokenizer, one of which is required; without them transformers makes one with an empty vocabulary."""
GOOD_TOWERS = "choose another such as 'vit_base_patch16_224' or 'swin_base_patch4_window7_224'."


class ImageTower(nn.Module):
    """timm model with a grid of patch tokens and at most one class token, and a projection; `num_patches` is N."""

    def __init__(self, cfg: CfgNode):
        super().__init__()
        self.name = cfg.MODEL.TRANSFORMER_TYPE
        self.tower = _create(cfg)
        self.projection = nn.Linear(self._width, cfg.MODEL.EMBED_SIZE)
        try:
            tokens = self._count_tokens(cfg.INPUT.SIZE)
        except (AssertionError, RuntimeError) as error:  # unsupported image size
            raise _unbuildable(cfg, error) from None
        self.num_patches = tokens - getattr(self.tower, "num_prefix_tokens", 0)
        side = round(self.num_patches**0.5)
        if side * side != self.num_patches or side < 2:
            raise UserError(
                f"INPUT.SIZE {list(cfg.INPUT.SIZE)} makes {self.num_patches} patches in {self.name}, but SEPS "
                "needs a square grid of at least 2×2; make the images square, or larger."
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images (B, 3, H, W) → tokens (B, N, C), or (B, 1 + N, C) where the model has a class token."""
        return self.projection(self._tokens(images))

    def load(self, source: str) -> str:
        """Load the weights of MODEL.PRETRAIN_PATH_T → a report; see `modeling.pretrained.load_pretrained`.

        timm resizes position embeddings.
        """
        if source in RANDOM:
            return RANDOM[source]
        weights = read_source(self.name, source)
        example = next(iter(weights), "no tensor")
        convert = getattr(sys.modules[type(self.tower).__module__], "checkpoint_filter_fn", None)
        try:
            converted = convert(weights, self.tower) if convert else weights
        except Exception as error:  # a filter may raise anything for weights of another model
            raise UserError(
                f"MODEL.PRETRAIN_PATH_T {source} holds no weights of {self.name} (it holds {example}, …, and timm "
                f"could not convert them: {error}); give weights of this tower, {OTHERS}."
            ) from None
        resized = [
            name
            for name, tensor in converted.items()
            if name in weights and tensor.shape != weights[name].shape
        ]
        return fill(self.tower, converted, self.name, source, resized, example)

    @property
    def _width(self) -> int:
        return int(self.tower.num_features)  # type: ignore[arg-type]  # timm's models do not declare it

    def _tokens(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.tower.forward_features(images)  # type: ignore[operator]  # as num_features
        # Swin Transformers return (B, H, W, C)
        return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens

    @torch.no_grad()
    def _count_tokens(self, size: list[int]) -> int:
        self.tower.eval()  # no random draws such as those of stochastic depth
        tokens = self._tokens(torch.zeros(1, 3, *size))
        self.tower.train()
        if tokens.ndim != 3 or tokens.shape[2] != self._width:
            raise _unfit_tower(self.name)
        return tokens.shape[1]


class TextTower(nn.Module):
    """BERT without its pooling layer, and a projection; `report` states the origin of its weights."""

    def __init__(self, cfg: CfgNode, pretrained: bool):
        super().__init__()
        self.tower, self.report = _bert(cfg, pretrained)
        self.projection = nn.Linear(self.tower.config.hidden_size, cfg.MODEL.EMBED_SIZE)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Token ids (B, L), lengths (B,) on their device or the CPU → word vectors (B, L, C), meaningless beyond a length."""
        mask = (
            torch.arange(words.shape[1], device=words.device)
            < lengths.to(words.device, non_blocking=True)[:, None]
        )
        return self.projection(
            self.tower(input_ids=words, attention_mask=mask.long()).last_hidden_state
        )


def load_tokenizer(cfg: CfgNode) -> "PreTrainedTokenizerBase":
    """Tokenizer of MODEL.TEXT_TOWER."""
    name = cfg.MODEL.TEXT_TOWER
    if Path(name).is_dir() and not any(Path(name, file).is_file() for file in VOCABULARY):
        raise UserError(
            f"MODEL.TEXT_TOWER {name} is a folder without a tokenizer; give one that holds a BERT and its "
            "tokenizer, as transformers' save_pretrained writes them."
        )
    config = _bert_config(cfg)
    tokenizer = _read_pretrained("AutoTokenizer", name, trust_remote_code=False)
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"MODEL.TEXT_TOWER {name} has a tokenizer of {len(tokenizer)} tokens, but its BERT has "
            f"{config.vocab_size}; give a folder in which they match."
        )
    return tokenizer


def _create(cfg: CfgNode) -> nn.Module:
    model = cfg.MODEL
    patch_size = {"patch_size": model.PATCH_SIZE} if model.PATCH_SIZE else {}
    try:
        tower = timm.create_model(
            model.TRANSFORMER_TYPE,
            pretrained=False,
            num_classes=0,
            global_pool="",
            img_size=tuple(cfg.INPUT.SIZE),
            drop_path_rate=model.DROP_PATH,
            **patch_size,
        )
    except (AssertionError, TypeError, ValueError, ZeroDivisionError) as error:
        # unsupported arguments
        raise _unbuildable(cfg, error) from None
    # Swin Transformers return a grid; Vision Transformers declare the number of tokens before the patches.
    is_swin = getattr(tower, "output_fmt", None) == "NHWC"
    if getattr(tower, "num_prefix_tokens", 0 if is_swin else 2) > 1:
        raise _unfit_tower(model.TRANSFORMER_TYPE)
    return tower


def _unbuildable(cfg: CfgNode, error: Exception) -> UserError:
    return UserError(
        f"MODEL.TRANSFORMER_TYPE {cfg.MODEL.TRANSFORMER_TYPE!r} takes no INPUT.SIZE {list(cfg.INPUT.SIZE)} with "
        f"MODEL.PATCH_SIZE {cfg.MODEL.PATCH_SIZE} ({' '.join(str(error).split()).rstrip('.')}); change them, or "
        f"{GOOD_TOWERS}"
    )


def _unfit_tower(name: str) -> UserError:
    return UserError(
        f"MODEL.TRANSFORMER_TYPE is {name!r}, whose tokens are not patches with one class token or none; "
        f"{GOOD_TOWERS}"
    )


def _bert(cfg: CfgNode, pretrained: bool) -> tuple["BertModel", str]:
    name = cfg.MODEL.TEXT_TOWER
    config = _bert_config(cfg)
    for key in ("MAX_WORDS", "MAX_LONG_WORDS"):
        if cfg.INPUT[key] > config.max_position_embeddings:
            raise UserError(
                f"INPUT.{key} is {cfg.INPUT[key]}, but MODEL.TEXT_TOWER {name} takes at most "
                f"{config.max_position_embeddings} words; lower it."
            )
    if not pretrained:
        return _transformers().BertModel(config, add_pooling_layer=False), ""
    bert, loading = _read_pretrained(
        "BertModel", name, config=config, add_pooling_layer=False, output_loading_info=True
    )
    if missing := sorted(loading["missing_keys"]):
        raise UserError(
            f"MODEL.TEXT_TOWER {name} is incomplete: {len(missing)} tensors are missing, the first "
            f"{missing[0]}; give another folder or name."
        )
    return bert.float(), f"text tower {name}: {len(bert.state_dict())} tensors loaded"


def _bert_config(cfg: CfgNode) -> "BertConfig":
    name = cfg.MODEL.TEXT_TOWER
    config = _read_pretrained("AutoConfig", name, trust_remote_code=False)
    if not isinstance(config, _transformers().BertConfig):
        raise UserError(
            f"MODEL.TEXT_TOWER {name} is a {config.model_type}, but SEPS reads captions with a BERT; give one such "
            "as 'bert-base-uncased'."
        )
    return config


def _read_pretrained(kind: str, name: str, **options: Any) -> Any:
    """`from_pretrained` of a class of transformers."""
    transformers = _transformers()
    try:
        return getattr(transformers, kind).from_pretrained(name, **options)
    except Exception as error:  # transformers raises many types of errors
        failure = (
            "cannot be read"
            if Path(name).is_dir()
            else "is no folder here, and the Hugging Face hub did not give it"
        )
        reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise UserError(
            f"MODEL.TEXT_TOWER {name} {failure} ({reason}); give a folder with a BERT and its tokenizer, or a name "
            "that the hub knows, with network access."
        ) from None


def _transformers() -> ModuleType:
    """transformers without its reports and progress bars; imported late, since it is slow and optional."""
    check_extra("The text tower", "seps", {"transformers": "transformers"})
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
