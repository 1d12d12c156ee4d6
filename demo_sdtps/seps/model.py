"""The SEPS model (docs/seps.md): two towers, and the network that compares every image with every caption."""

from itertools import chain

import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.runtime.distributed import all_gather, world_size
from demo_sdtps.runtime.matmul import matmul_library
from demo_sdtps.seps.network import CrossSparseAggrNet
from demo_sdtps.seps.towers import ImageTower, TextTower

Similarities = torch.Tensor | tuple[torch.Tensor, torch.Tensor | tuple[torch.Tensor, ...]]


class SEPS(nn.Module):
    """Images and captions → similarities; the network normalises the tokens."""

    float32_matmul: str

    def __init__(self, image_tower: ImageTower, text_tower: TextTower, network: CrossSparseAggrNet):
        super().__init__()
        self.image_tower, self.text_tower, self.network = image_tower, text_tower, network

    def forward(
        self,
        images: torch.Tensor,
        captions: torch.Tensor,
        lengths: torch.Tensor,
        *long: torch.Tensor,
    ) -> Similarities:
        """images (B_v, 3, H, W), token ids of captions (B_t, L), their lengths, `long` both of long captions → (B_v, B_t), in
        training with masks.

        In training, several processes compare their own images with the captions of all, B_t of each process. Lengths (B_t,)
        on the CPU spare a GPU the waiting for their largest.
        """
        with torch.no_grad():  # the network passes no gradient to long captions
            long_texts = [(self.text_tower(*long), long[1])] if long else []
        tokens = self.image_tower(images)
        texts = [(self.text_tower(captions, lengths), lengths), *long_texts]
        if self.training and world_size() > 1:
            texts = [_gather_texts(*text) for text in texts]
        return self.network(tokens, *chain(*texts))


def _gather_texts(words: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Word vectors (B, L, C) and lengths (B,) of the captions of all processes, padded to the longest, with gradients.

    Captions have fewer tokens than images, and whatever is computed once per image is computed in one process only.
    """
    lengths = all_gather(lengths)
    # In float32, as the network reads them, so that their gradients are summed in float32 too.
    return all_gather(F.pad(words.float(), (0, 0, 0, int(lengths.max()) - words.shape[1]))), lengths


def make_seps(cfg: CfgNode, pretrained: bool = True) -> tuple[SEPS, str]:
    """Model of a configuration, and a report of the origin of its weights.

    Without `pretrained` all weights are random, to be filled from a checkpoint.
    """
    model, image_tower, text_tower = cfg.MODEL, ImageTower(cfg), TextTower(cfg, pretrained)
    report = f"{image_tower.load(model.PRETRAIN_PATH_T)}\n{text_tower.report}" if pretrained else ""
    patches, ratios = image_tower.num_patches, (model.SDTPS_SPARSE_RATIO, model.SDTPS_AGGR_RATIO)
    try:
        network = CrossSparseAggrNet(
            model.EMBED_SIZE,
            patches,
            *ratios,
            use_paper_version=model.PAPER_VERSION,
            top_k=model.TOP_K,
            use_gumbel_softmax=model.SDTPS_USE_GUMBEL,
            gumbel_tau=model.SDTPS_GUMBEL_TAU,
            use_dual_aggr=model.DUAL_AGGR,
            beta=model.SDTPS_BETA,
        )
    except ValueError as error:  # the ratios leave no patch
        raise UserError(
            f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO {ratios} do not fit the {patches} patches of "
            f"{model.TRANSFORMER_TYPE}: {error}"
        ) from None
    seps = SEPS(image_tower, text_tower, network)
    seps.float32_matmul = matmul_library(cfg)
    return seps, report
