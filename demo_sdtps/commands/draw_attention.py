"""Draw what the model looks at: demo-sdtps draw attention --weight W --method rollout --output attention.png"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli, with_values
from demo_sdtps.config.common import ATTENTION_METHODS


def main() -> None:
    parser = flags.config_parser(
        "Draw where the model looks in triplets of the query split: attention rollout from the class token, or Grad-CAM of the "
        "last block's tokens towards the similarity with the identity's gallery samples. Beside them, HDM's weights of the "
        "modalities and ATMoE's gates, where the model has these.",
        "docs/method.md has the formulas. The backbone runs in float32.",
        images=True,
    )
    cli.add_choice(parser, "--method", ATTENTION_METHODS, "rollout")
    flags.add_return_pattern(parser, "features of Grad-CAM")
    cli.add_picture(parser, "attention.png")
    cli.add_count(parser, "--samples", 4, "triplets, spread over the split")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.command import load_model_and_data
    from demo_sdtps.evaluation.protocol import count_matched
    from demo_sdtps.reports.attention import attention_maps, draw_attention, gallery_matches
    from demo_sdtps.reports.figures import spread

    # Gradients and weights of single blocks are those of the reference model.
    cfg = with_values(cfg, {"MODEL.COMPILE": False, "TEST.AMP": "off"})
    model, splits = load_model_and_data(cfg)
    if arguments.method == "gradcam":
        count_matched(cfg, splits["query"], splits["gallery"])  # raises an error without labels
    matches = {
        sample: gallery_matches(cfg, sample, splits["gallery"]) for sample in splits["query"]
    }
    samples = [sample for sample in matches if matches[sample] or arguments.method == "rollout"]
    chosen = [samples[index] for index in spread(len(samples), arguments.samples)]
    targets = [matches[sample] for sample in chosen]
    maps = attention_maps(cfg, model, chosen, targets, arguments.method)
    cli.print_lines(draw_attention(cfg, chosen, maps, arguments.method, arguments.output))
