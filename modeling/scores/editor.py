"""The choice of EDITOR (Zhang et al., Magic Tokens, CVPR 2024): the class token's attention joined with a wavelet's energy."""
import torch
import torch.nn.functional as F

from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.scores.cues import mean_attention
from demo_sdtps.modeling.tokens import ByModality


def haar_energy(images: torch.Tensor) -> torch.Tensor:
    """Squared high-frequency coefficients of a Haar wavelet transform of one level, summed over bands and channels: images
    (B, C, H, W) → (B, 1, H, W) float32, at each pixel that of its block of 2×2. Of odd sides the last pixels are repeated."""
    height, width = images.shape[-2:]
    even = F.pad(images.float(), (0, width % 2, 0, height % 2), mode="replicate")
    a, b, c, d = (even[..., row::2, column::2] for row in range(2) for column in range(2))
    bands = torch.cat([a - b + c - d, a + b - c - d, a - b - c + d], dim=1) / 2
    return F.interpolate((bands * bands).sum(dim=1, keepdim=True), scale_factor=2.0)[..., :height, :width]


def ranks(score: torch.Tensor) -> torch.Tensor:
    """score (B, N) → (B, N) int64: 0 for the highest; of equal ones the first is the higher."""
    return score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


class Editor(Score):
    """The better of a patch's ranks by the attention of its class token (`mean_attention`) and by the energy of the images
    (`haar_energy`, mean over the patch, summed over the modalities that are not missing). A number of patches that is fixed
    is then the union of equally long tops of both; of two equal ranks that by attention comes first.

    Needs `Context.attention`, `images`, `patch_size` and `patch_stride`.
    """

    needs_attention = True

    def scores(self, context: Context) -> ByModality:
        present = [modality for modality in context.tokens if modality not in context.missing] or list(context.tokens)
        energy = torch.stack([haar_energy(context.images[modality]) for modality in present]).sum(dim=0)
        strength = F.avg_pool2d(energy, context.patch_size, context.patch_stride).flatten(1)
        found = {}
        for modality, attention in context.attention.items():
            own = ranks(strength.gather(1, context.positions_of(modality)))
            found[modality] = -torch.minimum(2 * ranks(mean_attention(attention)), 2 * own + 1).float()
        return found

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.scores(context)[context.modality]
