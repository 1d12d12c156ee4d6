"""Similarities of images and captions, with patches selected for each pair, HRPA, the relevance of image tokens and caption
words by their maximum cosine similarities, and the losses (docs/seps.md)."""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import TokenAggregation, TokenSparse, aggregation_mlp

PAIR_BYTES = {"cpu": 20 << 20, "cuda": 1 << 30}
"""Memory of the pairs that are compared at once: a CPU's cache, and enough to use a GPU fully."""
LEAK = 0.1  # negative slope of the LeakyReLU of the open version
MASKED = -1000.0  # cosine of a masked token: below all others, so that it is never the maximum


class Texts(NamedTuple):
    """Captions: normalised words (T, L, C), padded with the first word, which does not change a maximum; valid words (T, L);
    lengths (T,), not necessarily on the words' device; mean of the words before normalisation (T, C)."""

    words: Tensor
    valid: Tensor
    lengths: Tensor
    mean: Tensor

    def split(self, size: int) -> Iterator["Texts"]:
        """Blocks of at most `size` captions, truncated to the longest among them."""
        for words, valid, *others in zip(*(value.split(size) for value in self), strict=True):
            width = int(others[0].max())
            yield Texts(words[:, :width].contiguous(), valid[:, :width], *others)


class ImageFeatures(NamedTuple):
    """Features of the images that do not depend on the caption; R branches: of the caption, and of the long caption."""

    patches: Tensor  # (V, N, C)
    class_token: Tensor  # (V, 1, C) or (V, 0, C), normalised
    self_cosine: Tensor  # (V, N): of the patches with their mean
    predicted: Tensor  # (V, R, N): the MLPs' parts of the scores; unused in the open version
    logits: Tensor  # (V, R, N_c, N): of the weights of aggregation


def as_texts(words: Tensor, lengths: Tensor | Sequence[int]) -> Texts:
    """Captions of words (T, L, C) and lengths (T,); the padding is not read."""
    # where they are: a GPU would be waited for at every look at them
    lengths = torch.as_tensor(lengths)
    counts = lengths.to(words.device, non_blocking=True).unsqueeze(1)
    valid = torch.arange(words.shape[1], device=words.device) < counts
    words = words.float().masked_fill(~valid.unsqueeze(-1), 0.0)
    unit = F.normalize(words, dim=-1)
    unit = torch.where(valid.unsqueeze(-1), unit, unit[:, :1])
    return Texts(unit, valid, lengths, words.sum(dim=1) / counts)


class DualTokenAggregation(nn.Module):
    """Weights that aggregate the patches selected by the sparse and the dense caption, W_s V_s + W_d V_d: two weight MLPs, one
    scale. `embed_dim` is C, `out_tokens` N_c."""

    def __init__(self, embed_dim: int, out_tokens: int, dim_ratio: float = 0.2):
        super().__init__()
        self.weight_sparse = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.weight_dense = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits of the weights W_s and W_d: (B, S, C) → (B, 2, N_c, S)."""
        weights = self.weight_sparse, self.weight_dense
        by_branch = [weight(tokens).transpose(1, 2) * self.scale for weight in weights]
        return torch.stack(by_branch, dim=1)


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
        self.num_patches, self.keep = num_patches, sdtps.kept_tokens(num_patches, sparse_ratio)
        self.use_paper_version, self.beta = use_paper_version, beta
        self.chunk: int | None = None
        # weights and aggregated tokens in float32, about three times each
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
        img_embs: Tensor,
        cap_embs: Tensor,
        cap_lens: Tensor | Sequence[int],
        long_cap_embs: Tensor | None = None,
        long_cap_lens: Tensor | Sequence[int] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        """Image tokens (B_v, N or 1 + N, C), captions (B_t, L, C) with lengths (B_t,), optionally long captions likewise →
        similarities (B_v, B_t), in training (similarities, masks).

        Masks are (B_t, B_v, N): in the open version the sum over the captions, in the paper version a tuple of the sparse and
        optionally the dense caption. Raises `ValueError` for another number of image tokens.
        """
        texts = [as_texts(cap_embs, cap_lens)]
        if long_cap_embs is not None and long_cap_lens is not None:
            # As in the published code, long captions receive no gradient: they select patches and train the images.
            texts.append(as_texts(long_cap_embs.detach(), long_cap_lens))
        images = self._images(img_embs, branches=len(texts) if self.is_dual else 1)
        with torch.autocast(img_embs.device.type, enabled=False):
            similarities, masks = self._all_pairs(images, texts)
        if not self.training:
            return similarities
        return similarities, masks if self.use_paper_version else masks[0]

    def _images(self, tokens: Tensor, branches: int) -> ImageFeatures:
        """Features of the image tokens (V, N or 1 + N, C) that do not depend on the caption, for R branches."""
        prefix = tokens.shape[1] - self.num_patches
        if prefix not in (0, 1):
            raise ValueError(
                f"The image tokens are {tuple(tokens.shape)}, but must be {self.num_patches} patches for each image, or those "
                "after a class token."
            )
        class_token, patches = tokens[:, :prefix], tokens[:, prefix:]
        logits = self.aggr_net.logits(patches)
        logits = logits[:, :branches] if self.is_dual else logits.unsqueeze(1)
        nets = [self.sparse_net_cap, self.sparse_net_long] if self.use_paper_version else []
        self_cosine = sdtps.cosines(patches, patches.mean(dim=1).unsqueeze(0))[0]
        predicted = [sdtps.predict(net.score_predictor, patches) for net in nets[:branches]]
        return ImageFeatures(
            patches.float(),
            F.normalize(class_token.float(), dim=-1),
            self_cosine,
            torch.stack(predicted or [self_cosine], dim=1),
            logits.float().contiguous(),
        )

    def _all_pairs(
        self, images: ImageFeatures, texts: list[Texts]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Similarities (V, T) and, in training, masks (T, V, N) of each branch; in blocks of pairs."""
        chunk = self.chunk or max(1, PAIR_BYTES[images.patches.device.type] // self.pair_bytes)
        # Many captions rather than many images: the tokens of one image need no copy for the matrix products.
        wide = min(len(texts[0].words), chunk)
        columns, masks = [], []
        for some_texts in zip(*(text.split(wide) for text in texts), strict=True):
            by_block = zip(*(value.split(chunk // wide) for value in images), strict=True)
            rows = [self._match(ImageFeatures(*some), some_texts) for some in by_block]
            columns.append(torch.cat([similarity for similarity, _ in rows]))
            # of a thousand images and five thousand captions the masks are gigabytes
            if self.training:
                branches = zip(*(decisions for _, decisions in rows), strict=True)
                masks.append([torch.cat(branch, dim=1) for branch in branches])
        return torch.cat(columns, dim=1), tuple(map(torch.cat, zip(*masks, strict=True)))

    def _match(self, images: ImageFeatures, texts: Sequence[Texts]) -> tuple[Tensor, list[Tensor]]:
        """Similarities (V, T) and masks (T, V, N) of a block of pairs."""
        guidance = [sdtps.cosines(images.patches, text.mean.unsqueeze(1)) for text in texts]
        if self.use_paper_version:
            guidance = [sdtps.min_max(cosine) for cosine in (*guidance, images.self_cosine)]
            weights = (*(1.0 for _ in texts), 2.0)  # the image itself has weight two
            scores = [
                sdtps.guided_score(predicted, guidance, weights, self.beta)
                for predicted in images.predicted.unbind(dim=1)
            ]
            return self._compare(images, scores, texts[0])
        results = [
            self._compare(images, [images.self_cosine + cosine], text)
            for cosine, text in zip(guidance, texts, strict=True)
        ]
        similarities, masks = zip(*results, strict=True)
        return reduce(add, similarities), [reduce(add, (mask for (mask,) in masks))]

    def _compare(
        self, images: ImageFeatures, scores: list[Tensor], text: Texts
    ) -> tuple[Tensor, list[Tensor]]:
        """Select by the scores (T, V, N) of each branch, aggregate, match with the words → (V, T), masks (T, V, N)."""
        tau = self.gumbel_tau if self.training else None
        decisions = [sdtps.select(score, self.keep, tau)[1] for score in scores]
        extra_weights = reduce(add, map(sdtps.dropped_weights, scores, decisions)) / len(scores)
        # Weights over all patches instead of gathered patches: no token is copied, and W_s V_s + W_d V_d = (W_s + W_d) V.
        by_branch = []
        for logits, decision in zip(images.logits.unbind(dim=1), decisions, strict=True):
            mask = sdtps.log_mask(decision).transpose(0, 1).contiguous()
            by_branch.append((logits.unsqueeze(1) + mask.unsqueeze(2)).softmax(dim=-1))
        weights = reduce(add, by_branch)
        merged = (weights.flatten(1, 2) @ images.patches).unflatten(1, weights.shape[1:3])
        # Batched by caption, so that the tokens of one image need no copy; the norms divide the products, which are fewer.
        products = merged.transpose(0, 1).flatten(1, 2) @ text.words.mT
        products = products.unflatten(1, (len(merged), -1)).transpose(0, 1)
        norms = merged.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        merged_of_words, merged_of_tokens = max_sim((products / norms).mT)
        extra = F.normalize(extra_weights.transpose(0, 1) @ images.patches, dim=-1)
        singles = [
            torch.einsum("vpc,tlc->vtlp", images.class_token, text.words),
            torch.einsum("vtc,tlc->vtl", extra, text.words).unsqueeze(-1),
        ]
        single_of_words, single_of_tokens = max_sim(torch.cat(singles, dim=-1))
        of_words = torch.maximum(merged_of_words, single_of_words)
        of_tokens = torch.cat([merged_of_tokens, single_of_tokens], dim=-1)
        every_token = torch.ones_like(of_tokens, dtype=torch.bool)
        maxima = (of_words, text.valid), (of_tokens, every_token)
        return relevance(maxima, self.hrpa.relevance_mlp, self.hrpa.top_k), decisions


class HRPA(nn.Module):
    """Relevance of image tokens and words: mean of the maxima of the words plus mean of the maxima of the tokens.

    The open version applies LeakyReLU(0.1) to the cosines; the paper version adds an MLP of the `top_k` largest maxima of the
    words, and one of those of the tokens.
    """

    def __init__(self, use_paper_version: bool = False, top_k: int = 5):
        super().__init__()
        self.top_k = top_k
        self.relevance_mlp: nn.Sequential | None = None
        if use_paper_version:
            layers = nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1)
            self.relevance_mlp = nn.Sequential(*layers)

    def forward(
        self, patch_features: Tensor, word_features: Tensor, patch_mask: Tensor | None = None
    ) -> Tensor:
        """Image tokens (B_v, P, C), words of one caption (L, C) or (B_v, L, C), 1 for valid tokens (B_v, P) → (B_v, 1).

        At least one token of each image must be valid; the others are ignored.
        """
        tensors = patch_features, word_features, patch_mask
        return mask_xattn_one_text(*tensors, self.relevance_mlp, self.top_k)


def mask_xattn_one_text(
    patch_features: Tensor,
    word_features: Tensor,
    patch_mask: Tensor | None = None,
    relevance_mlp: nn.Module | None = None,
    top_k: int = 5,
) -> Tensor:
    """HRPA as a function: the paper version with a `relevance_mlp`, else the open version. patch_features (B_v, P, C),
    word_features (L, C) or (B_v, L, C), patch_mask (B_v, P) → (B_v, 1)."""
    words = F.normalize(word_features, dim=-1)
    cosines = words @ F.normalize(patch_features, dim=-1).transpose(1, 2)
    tokens = torch.ones_like(cosines[:, 0]) if patch_mask is None else patch_mask
    of_words, _ = max_sim(cosines.masked_fill(tokens.unsqueeze(1) <= 0, MASKED))
    _, of_tokens = max_sim(cosines)
    every_word = torch.ones_like(of_words, dtype=torch.bool)
    maxima = (of_words, every_word), (of_tokens, tokens > 0)
    return relevance(maxima, relevance_mlp, top_k).unsqueeze(-1)


def max_sim(cosines: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines (..., L, P) of words and tokens → the maximum of every word over the tokens (..., L), and of every token over the
    words (..., P)."""
    return cosines.amax(dim=-1), cosines.amax(dim=-2)


def relevance(
    maxima: Iterable[tuple[Tensor, Tensor]], relevance_mlp: nn.Module | None, top_k: int
) -> Tensor:
    """Relevance (...) from the maxima of words (..., L) and of tokens (..., P), each with whether it counts."""
    terms = []
    for values, valid in maxima:
        if relevance_mlp is None:
            # After the maximum rather than before: LeakyReLU is monotonic.
            values = F.leaky_relu(values, LEAK)
        else:
            # in descending order, those that are missing as zeros
            largest = values.masked_fill(~valid, -torch.inf)
            largest = largest.topk(min(top_k, values.shape[-1]), dim=-1).values
            largest = largest.masked_fill(largest == -torch.inf, 0.0)
            largest = F.pad(largest, (0, top_k - largest.shape[-1]))
            terms.append(relevance_mlp(largest).squeeze(-1))
        terms.append(values.masked_fill(~valid, 0.0).sum(dim=-1) / valid.sum(dim=-1))
    return reduce(add, terms)


SDTPS = CrossSparseAggrNet  # name in the published code (docs/seps.md)


def create_seps_model(*arguments: Any, **by_name: Any) -> CrossSparseAggrNet:
    """`CrossSparseAggrNet` with the arguments of the published code, by name or in its order."""
    order = "embed_size num_patches sparse_ratio aggr_ratio use_paper_version use_gumbel_softmax gumbel_tau"
    names = order.split()[: len(arguments)]
    return CrossSparseAggrNet(**dict(zip(names, arguments, strict=True)), **by_name)


class ContrastiveLoss(nn.Module):
    """Hinge ranking loss of the matching pairs on the diagonal against the negatives of their row and column. Sums all
    negatives, or with `max_violation` the hardest of each row and column (VSE++, Faghri et al. 2018)."""

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin, self.max_violation = margin, max_violation

    def forward(self, scores: Tensor, img_ids: Tensor | None = None) -> Tensor:
        """Similarities (B, B) of images and captions → sum over the batch; pairs with equal img_ids (B,) are no negatives."""
        matching = scores.diagonal()
        same = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        if img_ids is not None:
            same = same | (img_ids[:, None] == img_ids[None, :])
        total = torch.zeros((), dtype=scores.dtype, device=scores.device)
        for positive, dim in ((matching[:, None], 1), (matching[None, :], 0)):
            cost = (self.margin + scores - positive).clamp_min(0).masked_fill(same, 0.0)
            total = total + (cost.amax(dim=dim) if self.max_violation else cost).sum()
        return total


class RatioLoss(nn.Module):
    """Squared difference of the ratio of kept patches and a target; constant for a fixed number of them (docs/seps.md)."""

    def __init__(
        self, target_ratio: float = 0.5, lambda_sparse: float = 1.0, lambda_dense: float = 1.0
    ):
        super().__init__()
        self.target_ratio, self.lambdas = target_ratio, (lambda_sparse, lambda_dense)

    def forward(self, score_mask: Tensor | Sequence[Tensor]) -> Tensor:
        """One mask of any shape, or those of the sparse and optionally the dense captions → scalar."""
        if isinstance(score_mask, Tensor):
            return (score_mask.mean() - self.target_ratio).square()
        pairs = zip(self.lambdas, score_mask, strict=False)
        return reduce(add, (weight * self(mask) for weight, mask in pairs))


class SEPSLoss(nn.Module):
    """The loss of SEPS: alignment plus `ratio_weight` times the ratio loss."""

    def __init__(
        self,
        margin: float = 0.2,
        target_ratio: float = 0.5,
        ratio_weight: float = 2.0,
        max_violation: bool = False,
        lambda_sparse: float = 1.0,
        lambda_dense: float = 1.0,
    ):
        super().__init__()
        self.align = ContrastiveLoss(margin, max_violation)
        self.ratio = RatioLoss(target_ratio, lambda_sparse, lambda_dense)
        self.ratio_weight = ratio_weight

    def set_max_violation(self, max_violation: bool) -> None:
        """Select the hardest negatives only (True) or all negatives."""
        self.align.max_violation = max_violation

    def forward(
        self,
        similarity_matrix: Tensor,
        score_mask: Tensor | Sequence[Tensor],
        img_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Similarities (B, B), masks of `CrossSparseAggrNet`, image ids (B,) → total, alignment and ratio loss."""
        align, ratio = self.align(similarity_matrix, img_ids), self.ratio(score_mask)
        return align + self.ratio_weight * ratio, align, ratio
