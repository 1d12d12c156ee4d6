"""Write the features of a split: demo-sdtps export --weight W --output PLACE"""

from demo_sdtps.commands import flags
from demo_sdtps.config import RETURN_PATTERNS, cli
from demo_sdtps.datasets import SPLITS
from demo_sdtps.modeling.exported import ExportedModel

FORMATS = ("npz", "parquet", "lance")


def main() -> None:
    parser = flags.config_parser(
        "Write the features of a split. By the ending of the output, or --format: X.npz is a file for numpy with features "
        "(n, D) float32; ids, cams and scenes (n,), identities as named on disk, cameras from 0, both -1 with --images, "
        "scenes 0 where there are none; present (n,) uint8, the sum of 1, 2 and 4 for RGB, NI and TI, where the features "
        "are of them; paths (n, 3) in the order RGB, NI, TI, or (n, 1) where one image holds the three side by side; and, "
        "as single values, return_pattern, split, data_set, checkpoint (its path), checkpoint_sha256 (of its content), "
        "normalised (whether the features are) and configuration (JSON: the keys on which features depend, with their "
        "values). X.parquet is one file for databases, any other place a Lance table, in a folder or at an address such "
        "as s3://bucket/gallery: a row for each triplet with row (its number), name (its first path), rgb, ni, ti (its "
        "paths), identity, camera, scene, present (such as RGB,TI), split, return_pattern and feature, a list of D "
        "numbers; the other single values are metadata. An interrupted export to a table goes on when the command is "
        "called again, with --overwrite anew. Processes of torchrun share the work.",
        images=True,
    )
    patterns = "1 original, 2 enhanced, 3 both"
    cli.add_choice(parser, "--return_pattern", RETURN_PATTERNS, 3, patterns)
    cli.add_choice(parser, "--split", SPLITS, "gallery", "without effect with --images")
    outputs = "X.npz, X.parquet, or the place of a table, a folder or an address"
    cli.add_place(parser, "--output", "PLACE", outputs)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the ending of the output; lance needs pip install -e '.[search]', parquet '.[parquet]'",
    )
    cli.add_choice(
        parser, "--dtype", ("float32", "float16"), "float32", "of features in a table or Parquet"
    )
    cli.add_switch(parser, "--normalise", "L2-normalise the features, as evaluation does")
    cli.add_overwrite(parser)
    with flags.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.evaluation.command import load_any_model_and_data
        from demo_sdtps.retrieval import export

        export.check_output(arguments)
        model, splits = load_any_model_and_data(cfg, (arguments.split,), several=True)
        if isinstance(model, ExportedModel):
            model.check_pattern(arguments.return_pattern)
        write = export.export_table if arguments.format == "lance" else export.export_file
        write(cfg, arguments, model, splits[arguments.split])
