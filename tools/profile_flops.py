"""Parameters and multiply-accumulates of a model: python tools/profile_flops.py --config_file F

The cost of HDM's plain formulation, in which published figures count, is printed beside that of the shortcut in use.
"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from demo_sdtps.config.cli import config_parser, parse, positive_int, run
from demo_sdtps.evaluation.operations import count_macs, count_parameters, plain_hdm_macs, tokens_of_hdm
from demo_sdtps.modeling import make_model

PARTS = {"pife": "PIFE", "sdtps": "SDTPS", "hdm": "HDM", "atmoe": "ATMoE", "heads": "heads (training only)"}


def main() -> None:
    parser = config_parser("Print the trainable parameters and GMACs of one triplet, per part and in total.")
    parser.add_argument("--num_class", type=positive_int, default=171, help="training identities (default: 171, as RGBNT201)")
    parser.add_argument("--camera_num", type=positive_int, default=4, help="cameras (default: 4)")
    arguments, cfg = parse(parser)
    model = make_model(cfg, arguments.num_class, arguments.camera_num).eval()
    parameters, macs = count_parameters(model), count_macs(cfg, model)
    height, width = cfg.INPUT.SIZE_TEST
    print(f"{cfg.MODEL.TRANSFORMER_TYPE}, one triplet of {height}×{width}, {arguments.num_class} classes, "
          f"{arguments.camera_num} cameras")
    print(f"{'part':24}{'parameters':>14}{'GMACs':>10}")
    for part in parameters:
        print(f"{PARTS.get(part, part):24}{parameters[part]:14,}{macs[part] / 1e9:10.4f}")
    total = sum(parameters.values())
    print(f"{'total':24}{total:14,}{macs['']  / 1e9:10.4f}")
    if model.hdm:
        plain = plain_hdm_macs(model.backbone.width, tokens_of_hdm(model))
        print(f"{'plain formulation: HDM':38}{plain / 1e9:10.4f}")
        print(f"{'plain formulation: total':24}{total:14,}{(macs[''] - macs['hdm'] + plain) / 1e9:10.4f}")


if __name__ == "__main__":
    run(main)
