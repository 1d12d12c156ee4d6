"""Similarities of images and captions, with patches selected for each pair (docs/seps.md)."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import TokenAggregation, TokenSparse, aggregation_mlp
from demo_sdtps.seps import relevance
from demo_sdtps.seps.relevance import HRPA, ImageFeatures, Texts

MERGING_BYTES = {"cpu": 20 << 20, "cuda": 1 << 30}
"""Memory of the intermediate results of aggregation by device type: a CPU's cache, and enough to use a GPU fully."""
BLOCK = 4096  # pairs that are scored and selected at once; each needs a small part of the memory of aggregation


class DualTokenAggregation(nn.Module):
    """Weights that aggregate the patches selected by the sparse and the dense caption, W_s V_s + W_d V_d: two weight MLPs, one
    scale. `embed_dim` is C, `out_tokens` N_c; `max_sim_of_merged` aggregates."""

    def __init__(self, embed_dim: int, out_tokens: int, dim_ratio: float = 0.2):
        super().__init__()
        self.weight_sparse = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.weight_dense = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Logits of the weights W_s and W_d: (B, S, C) → two of (B, N_c, S)."""
        weights = (self.weight_sparse, self.weight_dense)
        return [weight(tokens).transpose(1, 2) * self.scale for weight in weights]


class CrossSparseAggrNet(nn.Module):
    """Similarity of every image with every caption; patches are selected and aggregated for each pair.

    `embed_size` is C, `num_patches` N. The paper version scores patches with MLPs and min-max normalised cosines, aggregates
    the selections of the sparse and the long ("dense") caption (`use_dual_aggr`) and matches them with the sparse caption. The
    open version scores by cosines and sums the relevances of both captions. The attribute `chunk` is the number of pairs that
    are aggregated at once (None: by the device).

    Raises `ValueError` for ratios that leave no token.
    """

    def __init__(
        self,
        embed_size: int = 512,
        num_patches: int = 196,
        sparse_ratio: float = 0.5,
        aggr_ratio: float = 0.4,
        use_paper_version: bool = False,
        top_k: int = 5,
        use_gumbel_softmax: bool = False,
        gumbel_tau: float = 1.0,
        use_dual_aggr: bool = True,
        beta: float = 0.25,
    ):
        super().__init__()
        out_tokens = sdtps.aggregated_tokens(num_patches, sparse_ratio, aggr_ratio)
        self.embed_size = embed_size
        self.num_patches, self.keep = num_patches, sdtps.kept_tokens(num_patches, sparse_ratio)
        self.use_paper_version, self.beta = use_paper_version, beta
        self.chunk: int | None = None
        # weights and aggregated tokens, about three times each
        self.pair_bytes = 12 * out_tokens * (num_patches + embed_size)
        self.gumbel_tau = gumbel_tau if use_gumbel_softmax else None
        self.is_dual = use_paper_version and use_dual_aggr
        if use_paper_version:
            self.sparse_net_cap = TokenSparse(embed_size, self.keep)
            self.sparse_net_long = TokenSparse(embed_size, self.keep)
        aggregation = DualTokenAggregation if self.is_dual else TokenAggregation
        self.aggr_net = aggregation(embed_size, out_tokens)
        self.hrpa = HRPA(use_paper_version, top_k)

    def forward(
        self,
        img_embs: torch.Tensor,
        cap_embs: torch.Tensor,
        cap_lens: torch.Tensor | Sequence[int],
        long_cap_embs: torch.Tensor | None = None,
        long_cap_lens: torch.Tensor | Sequence[int] | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | tuple[torch.Tensor, ...]]:
        """Image tokens (B_v, N or 1 + N, C), captions (B_t, L, C) with lengths (B_t,), optionally long captions likewise →
        similarities (B_v, B_t), in training (similarities, masks).

        Masks are (B_t, B_v, N): in the open version the sum over the captions, in the paper version a tuple of the sparse and
        optionally the dense caption. Raises `ValueError` for wrong shapes or lengths.
        """
        if (long_cap_embs is None) != (long_cap_lens is None):
            raise ValueError("Give both long_cap_embs and long_cap_lens, or neither.")
        caption, long = relevance.as_texts("cap", cap_embs, cap_lens), None
        if long_cap_embs is not None and long_cap_lens is not None:
            # As in the published code, long captions receive no gradient: they select patches and train the images.
            long = relevance.as_texts("long_cap", long_cap_embs.detach(), long_cap_lens)
            if len(long.words) != len(caption.words):
                raise ValueError(
                    "The numbers of captions and long captions differ; give one for each."
                )
        images = self._images(img_embs, has_long=long is not None)
        with torch.autocast(img_embs.device.type, enabled=False):
            similarities, masks = self._all_pairs(images, caption, long)
        if not self.training:
            return similarities
        return similarities, masks if self.use_paper_version else masks[0]

    def _images(self, tokens: torch.Tensor, has_long: bool) -> ImageFeatures:
        """Features of the image tokens (V, N or 1 + N, C) that do not depend on the caption."""
        prefix = tokens.shape[1] - self.num_patches if tokens.ndim == 3 and len(tokens) else None
        if prefix not in (0, 1):
            raise ValueError(
                f"The image tokens are {tuple(tokens.shape)}, but must be (images, tokens, width), not empty, of "
                f"{self.num_patches} patches, optionally after a class token."
            )
        class_token, patches = tokens[:, :prefix], tokens[:, prefix:]
        predictions = self.aggr_net.logits(patches)
        logits = [predictions] if isinstance(predictions, torch.Tensor) else predictions
        nets = [self.sparse_net_cap, self.sparse_net_long] if self.use_paper_version else []
        branches = 2 if self.is_dual and has_long else 1
        self_score = sdtps.cosines(patches, patches.mean(dim=1).unsqueeze(0))[0]
        class_token = F.normalize(class_token.float(), dim=-1)
        predicted = tuple(sdtps.predict(net.score_predictor, patches) for net in nets[:branches])
        of_branches = tuple(logit.float().contiguous() for logit in logits[:branches])
        return ImageFeatures(patches.float(), class_token, self_score, predicted, of_branches)

    def _all_pairs(
        self, images: ImageFeatures, caption: Texts, long: Texts | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Similarities (V, T) and, in training, masks (T, V, N) of each branch; in blocks of pairs."""
        count, total = len(images.patches), len(caption.words)
        memory = MERGING_BYTES.get(images.patches.device.type, MERGING_BYTES["cuda"])
        chunk = self.chunk or max(1, memory // self.pair_bytes)
        # Many captions rather than many images: the tokens of one image need no copy for the matrix products.
        wide = min(total, chunk)
        tall = max(BLOCK, chunk) // wide
        columns, mask_columns = [], []
        for left in range(0, total, wide):
            texts = caption.part(left, left + wide), long and long.part(left, left + wide)
            blocks = [
                self._match(images.part(top, top + tall), *texts, tall=max(1, chunk // wide))
                for top in range(0, count, tall)
            ]
            columns.append(torch.cat([similarity for similarity, _ in blocks]))
            # of a thousand images and five thousand captions the masks are gigabytes
            if self.training:
                branches = zip(*(masks for _, masks in blocks), strict=True)
                mask_columns.append([torch.cat(masks, dim=1) for masks in branches])
        masks = tuple(map(torch.cat, zip(*mask_columns, strict=True)))
        return torch.cat(columns, dim=1), masks

    def _match(
        self, images: ImageFeatures, caption: Texts, long: Texts | None, tall: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Similarities (V, T) and masks (T, V, N) of a block of pairs; `tall` images are aggregated at once."""
        texts = [caption, long] if long else [caption]
        guidance = [sdtps.cosines(images.patches, text.mean.unsqueeze(1)) for text in texts]
        if self.use_paper_version:
            guidance = [sdtps.min_max(cosine) for cosine in (*guidance, images.self_cosine)]
            weights = (*(1.0 for _ in texts), 2.0)  # the image itself has weight two
            scores = [
                sdtps.guided_score(predicted, guidance, weights, self.beta)
                for predicted in images.predicted
            ]
            return self._compare(images, scores, caption, tall)
        branches = [
            self._compare(images, [images.self_cosine + cosine], text, tall)
            for cosine, text in zip(guidance, texts, strict=True)
        ]
        masks = reduce(add, (mask for _, (mask,) in branches))
        return reduce(add, (similarity for similarity, _ in branches)), [masks]

    def _compare(
        self, images: ImageFeatures, scores: list[torch.Tensor], text: Texts, tall: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Select by the scores (T, V, N) of each branch, aggregate, match with the words → (V, T), masks (T, V, N)."""
        tau = self.gumbel_tau if self.training else None
        decisions = [sdtps.select(score, self.keep, tau)[1] for score in scores]
        weights = reduce(add, map(sdtps.dropped_weights, scores, decisions)) / len(scores)
        masks = [sdtps.log_mask(decision).transpose(0, 1).contiguous() for decision in decisions]
        merged = relevance.max_sim_of_merged(images, masks, text, tall)
        matches = relevance.concat(merged, relevance.single_max_sim(images, weights, text))
        mlp, top_k = self.hrpa.relevance_mlp, self.hrpa.top_k
        return relevance.relevance(matches, text.valid, None, mlp, top_k), decisions


def create_seps_model(
    embed_size: int = 512,
    num_patches: int = 196,
    sparse_ratio: float = 0.5,
    aggr_ratio: float = 0.4,
    use_paper_version: bool = False,
    use_gumbel_softmax: bool = False,
    gumbel_tau: float = 1.0,
) -> CrossSparseAggrNet:
    """`CrossSparseAggrNet` with the arguments of the published code."""
    return CrossSparseAggrNet(
        embed_size,
        num_patches,
        sparse_ratio,
        aggr_ratio,
        use_paper_version,
        use_gumbel_softmax=use_gumbel_softmax,
        gumbel_tau=gumbel_tau,
    )


SDTPS = CrossSparseAggrNet  # name in the published code (docs/seps.md)
