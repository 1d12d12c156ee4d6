"""demo-sdtps search and --images: the folders of DATASETS.FOLDERS."""

import shutil
from pathlib import Path

import numpy as np
from commands import CONFIG, KEEP_ALL, checkpoint_file, cli_args_for, read_rows

from demo_sdtps.commands.export import features as export_features
from demo_sdtps.config import load_cfg

SETTINGS = KEEP_ALL


def test_folders_have_the_names_of_the_configuration(run_search, place, weights, command):
    """DATASETS.FOLDERS, of the command line and of the checkpoint: hits are those of the folders RGB and TI, which are read
    too where the named ones are not there; an image without a folder is of the modality of "."."""

    def hits_of(*words, **places):
        code, _, stderr = run_search(
            "--csv", "x.csv", "--top", "3", "--overwrite", *words, **places
        )
        assert code == 0, stderr
        plain = [
            [cell.replace("visible", "RGB").replace("t/heat", "TI") for cell in row]
            for row in read_rows("x.csv")
        ]
        return [
            [row[0].replace("named/", ""), row[1], row[2].replace("named/", ""), row[3]]
            for row in plain
        ]

    expected = hits_of()
    shutil.copytree("gallery", "named/gallery")
    shutil.copytree("query", "named/query")
    for side in ("gallery", "query"):
        Path("named", side, "RGB").rename(Path("named", side, "visible"))
        Path("named", side, "t").mkdir()
        Path("named", side, "TI").rename(Path("named", side, "t", "heat"))
    names = ("DATASETS.FOLDERS", "[RGB=visible, TI=t/heat, train=learn]")
    sides = {"query": "named/query", "gallery": "named/gallery"}
    assert hits_of(*names, **sides) == hits_of(*names) == expected
    image = {"query": "named/query/t/heat/<i>&1.jpg", "gallery": "named/gallery"}
    assert hits_of(*names, **image)[1:] == expected[4:]
    trained = load_cfg(
        CONFIG, [*cli_args_for("data", *SETTINGS)[2:], *names[:1], "[TI=t/heat, RGB=.]"]
    )
    other = checkpoint_file(place / "named.pth", trained)
    shutil.copy("query/RGB/<i>&1.jpg", "named/mine.jpg")
    mine = hits_of("--weight", other, query="named/mine.jpg", gallery="named/gallery/visible")
    assert mine[1][2] == "gallery/RGB/photo 1.jpg" and mine[1][3] == "0.000000"
    words = ("--weight", other, "--images", "named/gallery", "--output", "x.npz")
    code, _, stderr = command(export_features, *words)
    assert code == 0, stderr
    first = np.load("x.npz")["paths"][0]
    assert [path and Path(path).parent.name for path in first.tolist()] == ["", "NI", "heat"]
