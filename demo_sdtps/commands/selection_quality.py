"""Share of the kept patches that lie on the person: demo-sdtps selection --weight W"""

from dataclasses import asdict

from demo_sdtps.commands import flags
from demo_sdtps.config import UserError, cli
from demo_sdtps.datasets import SPLITS
from demo_sdtps.runtime.files import write_json


def main() -> None:
    parser = flags.config_parser(
        "Measure how many of the patches that SDTPS and the stages of slimming keep lie on the person. Needs foreground "
        "masks, which synthetic pedestrians have. The tables have, for complete triplets (by day and by night too, where that "
        "is known) and every case of missing modalities, the share of the patches (base rate) and of the kept patches on the "
        "person, the share of the person's patches that are kept (recall), and the average precision (AP) of the score and of "
        "each of its terms as a detector of the person; for SDTPS the terms are the MLP and the similarities to the global "
        "features of RGB, NI and TI."
    )
    cli.add_choice(parser, "--split", SPLITS, "query")
    cli.add_output(parser, "--json", ".json", help="write it, in [0, 1], to this file")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.datasets.loaders import test_loader
    from demo_sdtps.datasets.synthetic import illumination
    from demo_sdtps.evaluation import selection
    from demo_sdtps.evaluation.extraction import load_model_and_data

    selection.check_selection(cfg)
    if cfg.TEST.MISS not in ("nothing", "None"):
        raise UserError(
            f"TEST.MISS is {cfg.TEST.MISS!r}, but this command always measures complete triplets and every case of "
            "missing modalities; set it to 'nothing'."
        )
    model, splits = load_model_and_data(cfg, (arguments.split,))
    samples = splits[arguments.split]
    on_person = selection.foreground(cfg, model.backbone, samples)
    illuminations = [illumination(sample) for sample in samples]
    quality = selection.measure_selection(
        model, test_loader(cfg, samples), on_person, illuminations
    )
    title = selection.caption(cfg, quality, arguments.split)
    if arguments.json:
        about = {"split": arguments.split, "weight": cfg.TEST.WEIGHT}
        about["guide_missing"] = cfg.MODEL.SDTPS_GUIDE_MISSING
        write_json(arguments.json, {"caption": title, **asdict(quality), **about})
    cli.print_lines(title, *selection.as_tables(quality), *filter(None, [arguments.json]))
