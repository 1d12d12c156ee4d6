"""How alike the outputs of a trained model are: python -m studies.similarity --weight W --json FILE

Mean cosine between the patch tokens of a query's image, and between the global features of two images of a batch of queries;
near 1 the backbone has collapsed: its outputs hardly depend on place and image (Dong et al., "Attention is not all you need",
ICML 2021).
"""

from statistics import mean

import torch
import torch.nn.functional as F

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.runtime.files import write_json


def main() -> None:
    parser = flags.config_parser(__doc__.split("\n\n")[1])
    cli.add_output(parser, "--json", ".json", help="write it to this file")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.datasets.loaders import batches, test_loader
    from demo_sdtps.evaluation.command import load_model_and_data
    from demo_sdtps.modeling.inference import evaluating

    model, splits = load_model_and_data(cfg, ("query",))
    tokens, images, device = [], [], next(model.parameters()).device
    with evaluating(model):
        for batch in batches(test_loader(cfg, splits["query"])):
            batch = batch.to(device)
            context = model.forward_features(batch.images, batch.cameras).context
            tokens += [mean_cosine(patches).mean().item() for patches in context.tokens.values()]
            if len(batch.cameras) > 1:
                images += [mean_cosine(rows).item() for rows in context.global_feats.values()]
    content = {"tokens": mean(tokens), "images": mean(images)}
    if arguments.json:
        write_json(arguments.json, content)
    cli.print_lines(*(f"{what}: mean cosine {value:.3f}" for what, value in content.items()))


def mean_cosine(rows: torch.Tensor) -> torch.Tensor:
    """Mean cosine similarity of two different rows of (…, N, C), (…)."""
    unit = F.normalize(rows.float(), dim=-1)
    count = rows.shape[-2]
    return (unit.sum(dim=-2).square().sum(dim=-1) - count) / (count * (count - 1))


if __name__ == "__main__":
    cli.run(main)
