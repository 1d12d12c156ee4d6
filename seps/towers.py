"""The two towers of SEPS (docs/seps.md): images to patch tokens by a timm model, captions to word vectors by a BERT."""
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import timm
import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.modeling.pretrained import RANDOM, fill, read_source

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedTokenizerBase

VOCABULARY = ("tokenizer.json", "vocab.txt")
"""Files of a tokenizer, either of which is enough; without them transformers makes one that knows no word."""
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
GOOD_TOWERS = "choose another such as 'vit_base_patch16_224' or 'swin_base_patch4_window7_224'."


class ImageTower(nn.Module):
    """A timm model that ends in a grid of tokens, with a class token before them or without, and a projection.

    `num_patches` is N, the number of patch tokens.

    Raises `UserError` where MODEL.TRANSFORMER_TYPE has other tokens, or where they are no square grid at INPUT.SIZE.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__()
        self.name = cfg.MODEL.TRANSFORMER_TYPE
        self.tower = _create(cfg)
        self.projection = nn.Linear(self.tower.num_features, cfg.MODEL.EMBED_SIZE)
        try:
            tokens = self._count_tokens(cfg.INPUT.SIZE)
        except (AssertionError, RuntimeError) as error:  # images of a size that this model does not take
            raise _unbuildable(cfg, error) from None
        self.num_patches = tokens - getattr(self.tower, "num_prefix_tokens", 0)
        side = round(self.num_patches ** 0.5)
        if side * side != self.num_patches or side < 2:
            raise UserError(f"INPUT.SIZE {list(cfg.INPUT.SIZE)} makes {self.num_patches} patches in {self.name}, but SEPS "
                            "needs a square grid of at least 2×2; make the images square, or larger.")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images (B, 3, H, W) → tokens (B, N, C), or (B, 1 + N, C) where the model has a class token."""
        return self.projection(self._tokens(images))

    def load(self, source: str) -> str:
        """Fill the model from MODEL.PRETRAIN_PATH_T → a report; see `modeling.pretrained.load_pretrained`.

        Position embeddings are resized by timm, as it does it for this kind of model. Raises `UserError`.
        """
        if not source:
            return RANDOM
        found = read_source(self.name, source)
        example = next(iter(found), "nothing at all")
        convert = getattr(sys.modules[type(self.tower).__module__], "checkpoint_filter_fn", None)
        try:
            converted = convert(found, self.tower) if convert else found
        except Exception as error:  # whatever a filter meets in weights that it was not made for
            raise UserError(f"MODEL.PRETRAIN_PATH_T {source} holds no weights of {self.name} (it holds {example}, …, and timm "
                            f"could not convert them: {error}); give weights of this tower, 'hub', or '' for random ones."
                            ) from None
        resized = [name for name, tensor in converted.items() if name in found and tensor.shape != found[name].shape]
        return fill(self.tower, converted, self.name, source, resized, example)

    def _tokens(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.tower.forward_features(images)
        return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens  # a Swin Transformer keeps its grid: (B, H, W, C)

    @torch.no_grad()
    def _count_tokens(self, size: list[int]) -> int:
        self.tower.eval()  # nothing random, such as stochastic depth, is to be drawn
        tokens = self._tokens(torch.zeros(1, 3, *size))
        self.tower.train()
        if tokens.ndim != 3 or tokens.shape[2] != self.tower.num_features:
            raise _unfit(self.name)
        return tokens.shape[1]


class TextTower(nn.Module):
    """A BERT without its pooling layer, and a projection.

    `report` says where its weights are from. Raises `UserError` where MODEL.TEXT_TOWER is no BERT, or takes fewer words
    than INPUT.MAX_WORDS or INPUT.MAX_LONG_WORDS.
    """

    def __init__(self, cfg: CfgNode, pretrained: bool):
        super().__init__()
        bert, self.report = _bert(cfg, pretrained)
        self.tower = bert
        self.projection = nn.Linear(bert.config.hidden_size, cfg.MODEL.EMBED_SIZE)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """words (B, L) as numbers of the tokenizer, lengths (B,) → word vectors (B, L, C); what follows a length is nothing."""
        mask = torch.arange(words.shape[1], device=words.device) < lengths[:, None]
        return self.projection(self.tower(input_ids=words, attention_mask=mask.long()).last_hidden_state)


def load_tokenizer(cfg: CfgNode) -> "PreTrainedTokenizerBase":
    """The tokenizer of MODEL.TEXT_TOWER. Raises `UserError`."""
    name = cfg.MODEL.TEXT_TOWER
    _check_folder(name, VOCABULARY, "no tokenizer")
    config = _bert_config(cfg)
    try:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers and its parts raise what they meet
        raise _unreadable(name, error) from None
    if len(tokenizer) > config.vocab_size:
        raise UserError(f"MODEL.TEXT_TOWER {name} has a tokenizer of {len(tokenizer)} words, but its BERT knows "
                        f"{config.vocab_size}; give a folder in which they belong together.")
    return tokenizer


def _create(cfg: CfgNode) -> nn.Module:
    model = cfg.MODEL
    patch_size = {"patch_size": model.PATCH_SIZE} if model.PATCH_SIZE else {}
    try:
        tower = timm.create_model(model.TRANSFORMER_TYPE, pretrained=False, num_classes=0, global_pool="",
                                  img_size=tuple(cfg.INPUT.SIZE), drop_path_rate=model.DROP_PATH, **patch_size)
    except (AssertionError, TypeError, ValueError, ZeroDivisionError) as error:  # arguments that this model does not take
        raise _unbuildable(cfg, error) from None
    # Swin Transformers keep their grid, Vision Transformers say how many tokens come before the patches.
    is_swin = getattr(tower, "output_fmt", None) == "NHWC"
    if getattr(tower, "num_prefix_tokens", 0 if is_swin else 2) > 1:
        raise _unfit(model.TRANSFORMER_TYPE)
    return tower


def _unbuildable(cfg: CfgNode, error: Exception) -> UserError:
    return UserError(f"MODEL.TRANSFORMER_TYPE {cfg.MODEL.TRANSFORMER_TYPE!r} takes no INPUT.SIZE {list(cfg.INPUT.SIZE)} with "
                     f"MODEL.PATCH_SIZE {cfg.MODEL.PATCH_SIZE} ({' '.join(str(error).split()).rstrip('.')}); change them, or "
                     f"{GOOD_TOWERS}")


def _unfit(name: str) -> UserError:
    return UserError(f"MODEL.TRANSFORMER_TYPE is {name!r}, whose tokens are not patches with one class token or none; "
                     f"{GOOD_TOWERS}")


def _bert(cfg: CfgNode, pretrained: bool) -> tuple[nn.Module, str]:
    name = cfg.MODEL.TEXT_TOWER
    config = _bert_config(cfg)
    longest = max(("INPUT.MAX_WORDS", cfg.INPUT.MAX_WORDS), ("INPUT.MAX_LONG_WORDS", cfg.INPUT.MAX_LONG_WORDS),
                  key=lambda limit: limit[1])
    if longest[1] > config.max_position_embeddings:
        raise UserError(f"{longest[0]} is {longest[1]}, but MODEL.TEXT_TOWER {name} takes at most "
                        f"{config.max_position_embeddings} words; lower it.")
    model_class = _transformers().BertModel
    if not pretrained:
        return model_class(config, add_pooling_layer=False), ""
    try:
        bert, loading = model_class.from_pretrained(name, config=config, add_pooling_layer=False, output_loading_info=True)
    except Exception as error:
        raise _unreadable(name, error) from None
    if missing := sorted(loading["missing_keys"]):
        raise UserError(f"MODEL.TEXT_TOWER {name} holds no whole BERT: {len(missing)} tensors are missing, the first "
                        f"{missing[0]}; give another folder or name.")
    return bert.float(), f"text tower {name}: {len(bert.state_dict())} tensors loaded"


def _bert_config(cfg: CfgNode) -> "BertConfig":
    name = cfg.MODEL.TEXT_TOWER
    transformers = _transformers()
    _check_folder(name, ("config.json",), "no config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise _unreadable(name, error) from None
    if not isinstance(config, transformers.BertConfig):
        raise UserError(f"MODEL.TEXT_TOWER {name} is a {config.model_type}, but SEPS reads captions with a BERT; give one such "
                        "as 'bert-base-uncased'.")
    return config


def _check_folder(name: str, files: tuple[str, ...], lacking: str) -> None:
    """Raise `UserError` where `name` is a folder with none of the files, or a path of none."""
    folder = Path(name)
    if folder.is_dir():
        if not any((folder / file).is_file() for file in files):
            raise UserError(f"MODEL.TEXT_TOWER {name} is a folder with {lacking}; give one that holds a BERT and its "
                            "tokenizer, as transformers' save_pretrained writes them.")
    elif not HUB_NAME.fullmatch(name) or folder.exists():
        raise UserError(f"MODEL.TEXT_TOWER {name} is no folder; give one that holds a BERT and its tokenizer, or a name that "
                        "the Hugging Face hub knows such as 'bert-base-uncased'.")


def _unreadable(name: str, error: Exception) -> UserError:
    place = "cannot be read" if Path(name).is_dir() else "is no folder here, and the Hugging Face hub did not give it"
    reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
    return UserError(f"MODEL.TEXT_TOWER {name} {place} ({reason}); give a folder with a BERT and its tokenizer, or a name "
                     "that the hub knows, with the network there.")


def _transformers() -> ModuleType:
    """transformers, without its reports and progress bars; slow to import, and needed by SEPS alone."""
    try:
        import transformers
    except ImportError:
        raise UserError("SEPS reads captions with a BERT of transformers, which is not installed; pip install '.[seps]'."
                        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
