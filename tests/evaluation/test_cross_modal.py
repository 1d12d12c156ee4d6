"""Any modality against any: distances between sets of modalities, and test_net.py --cross_modal (docs/method.md)."""

import json
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from commands import CONFIG, cases_of, cli_args_for, weights_file
from numeric import assert_close, generator, tolerance
from tiny import MODEL, random_images, tiny_model

from demo_sdtps.commands import test as test_net
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.cross_modal import set_distances, sets_of
from demo_sdtps.evaluation.extraction import CASES, extract_features
from demo_sdtps.evaluation.missing import extract_patterns
from demo_sdtps.evaluation.protocol import make_test_data
from demo_sdtps.modeling.fusion import SUBSETS
from tests.reference import cross_modal as plain
from tests.reference import ranking

SETS = sets_of(MODALITIES)

PRESENT = {
    "R": {"RGB"},
    "N": {"NI"},
    "T": {"TI"},
    "RN": {"RGB", "NI"},
    "RT": {"RGB", "TI"},
    "NT": {"NI", "TI"},
    "RNT": {"RGB", "NI", "TI"},
}
OWN = [("RGB",), ("NI",), ("TI",)]
FUSION = "MODEL.HDM True MODEL.ATM True MODEL.HEAD 4"
WIDTH = 5


def test_the_sets_are_named_by_what_is_present():
    assert {name: set(MODALITIES) - CASES[case] for name, case in SETS.items()} == PRESENT and list(
        SETS
    ) == list(PRESENT)


@pytest.mark.parametrize(
    "sources", [OWN, [*SUBSETS.values()], [*OWN, *OWN, *SUBSETS.values()]], ids=["3C", "7C", "13C"]
)
@pytest.mark.parametrize("how", ["all", "shared", "pairs"])
def test_distances_against_the_slow_version(how, sources):
    """In all 49 cells, of which 12 share nothing; what is not used may be anything, as a missing modality's columns."""
    draws, undefined = generator(len(sources)), 0
    for query_set, gallery_set in product(PRESENT.values(), repeat=2):
        query, gallery = (
            torch.randn(count, len(sources), WIDTH, generator=draws) for count in (3, 4)
        )
        find = partial(
            set_distances,
            present=(query_set, gallery_set),
            sources=[frozenset(names) for names in sources],
            how=how,
            scale=partial(F.normalize, dim=1),
        )
        actual = find(query, gallery)
        expected = [
            [
                plain.distance(one, two, sources, query_set, gallery_set, how)
                for two in gallery.double().tolist()
            ]
            for one in query.double().tolist()
        ]
        if actual is None:
            undefined += 1
            assert expected == [[None] * 4] * 3 and not query_set & gallery_set
            continue
        assert_close(actual, expected, *2 * (len(sources) * WIDTH,), 9, scale=4)
        for place, names in enumerate(sources):
            for side, present in ((query, query_set), (gallery, gallery_set)):
                if how != "all" and not present.issuperset(names):
                    side[:, place] = torch.randn(side[:, place].shape, generator=draws)
        assert how == "all" or torch.equal(find(query, gallery), actual)
    assert undefined == (12 if how == "shared" else 0)


@pytest.mark.parametrize(
    "opts",
    [
        "MODEL.USE_SDTPS False",
        f"MODEL.USE_SDTPS False MODEL.DIRECT 0 {FUSION}",
        "MODEL.SDTPS_BETA 0.0",
        "MODEL.SDTPS_BETA 0.0 MODEL.HDM True",
    ],
    ids=["baseline", "HDM, ATMoE", "SDTPS", "SDTPS, HDM"],
)
@pytest.mark.parametrize("changed", MODALITIES)
@torch.no_grad()
def test_the_columns_of_a_modality(changed, opts):
    """Another image of a modality changes the columns that are made from it alone: of ATMoE's also the lengths of the others,
    each head's by its weight, but not their directions. With a beta of 0 no modality guides another in SDTPS."""
    model = tiny_model(*opts.split()).eval()
    heads, view = (4, partial(F.normalize, dim=-1)) if model.atmoe else (1, torch.clone)
    images, cameras = random_images(1)
    others = images | {changed: random_images(2)[0][changed]}
    before, after = (
        extract_patterns(model, each, cameras, [frozenset()])[0] for each in (images, others)
    )
    for pattern, sources in model.layout.sources.items():
        parts = [
            actual[pattern].unflatten(1, (len(sources), heads, -1)) for actual in (before, after)
        ]
        for place, names in enumerate(sources):
            one, two = (view(columns[:, place]) for columns in parts)
            is_same = (one - two).abs().max() <= tolerance(*MODEL, *MODEL) * max(
                1, float(one.abs().max())
            )
            assert is_same == (changed not in names), (pattern, names)


@pytest.fixture(scope="module")
def words(tiny_root, tmp_path_factory):
    """The command line of an untrained model with SDTPS, HDM and ATMoE."""
    words = cli_args_for(tiny_root, *FUSION.split())
    path = weights_file(
        tmp_path_factory.mktemp("weights") / "weights.pth", load_cfg(CONFIG, words[2:])
    )
    return [*words, "TEST.WEIGHT", str(path)]


@pytest.mark.parametrize("how, pattern", [("all", 3), ("shared", 2), ("pairs", 3)])
def test_matrices_of_all_sets(how, pattern, words, command, tmp_path):
    """Equal sets as TEST.MISS all has them, to the last bit; unequal ones by the slow versions of distance and ranking."""
    words = [*words, "TEST.RETURN_PATTERN", pattern, "TEST.CROSS_MODAL_DISTANCE", how]
    outputs = ("--json", tmp_path / "x.json", "--output", tmp_path / "x.png")
    code, stdout, stderr = command(test_net.main, *words, "--cross_modal", *outputs)
    assert code == 0, stderr
    content = json.loads((tmp_path / "x.json").read_text())
    assert (content["distance"], content["return_pattern"]) == (how, pattern)
    actual = content["cross_modal"]
    assert (tmp_path / "x.png").stat().st_size > 10_000 and "x.png" in stdout

    more = ("TEST.MISS", "all", "--json", tmp_path / "all.json")
    assert command(test_net.main, *words, *more)[0] == 0
    table = cases_of(tmp_path / "all.json")
    for measure, rows in actual.items():
        assert {SETS[name]: rows[name][name] for name in SETS} == {
            case: record[str(pattern)][measure] for case, record in table.items()
        }

    cfg = load_cfg(CONFIG, list(map(str, words[2:])))
    model, _ = load_model_and_data(cfg)
    splits = read_splits(cfg, ("query", "gallery"))
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    used = 1 if how == "pairs" else pattern
    features = dict(
        zip(CASES, extract_features(cfg, model, data.loader, list(CASES.values())), strict=True)
    )
    sources = [*(OWN * (used != 2)), *(OWN * (used > 1)), *(SUBSETS.values() if used > 1 else ())]
    labels = [
        data.labels(name, side).tolist()
        for name in ("identity", "camera")
        for side in (data.query, data.gallery)
    ]
    for query_set, gallery_set in (("R", "NT"), ("RT", "T"), ("RNT", "RN")):
        query, gallery = (
            features[SETS[name]][used][side].double().unflatten(1, (len(sources), -1)).tolist()
            for name, side in ((query_set, data.query), (gallery_set, data.gallery))
        )
        distances = [
            [
                plain.distance(one, two, sources, PRESENT[query_set], PRESENT[gallery_set], how)
                for two in gallery
            ]
            for one in query
        ]
        expected = (
            None if distances[0][0] is None else ranking.evaluate_distances(distances, *labels)[1]
        )
        # one exchange, of 6
        assert actual["mAP"][query_set][gallery_set] == (
            expected and pytest.approx(expected, abs=1 / len(query) / 12)
        )

    tables = stdout.split("\n\n")[1:]
    for text, (measure, rows) in zip(tables, actual.items(), strict=True):
        lines = [line.split() for line in text.splitlines()]
        assert lines[0] == [measure, *SETS]
        assert [line[1:] for line in lines[1:8]] == [
            ["-" if value is None else f"{100 * value:.1f}" for value in row.values()]
            for row in rows.values()
        ]


@pytest.mark.parametrize(
    "more, message",
    [
        (("--cross_modal", "TEST.RE_RANKING", "yes"), "without re-ranking"),
        (("--cross_modal", "TEST.MISS", "rn"), "TEST.MISS"),
        (("--output", "x.png"), "--cross_modal"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together(more, message, words, command):
    code, _, stderr = command(test_net.main, *words, *more)
    assert code == 2 and message in stderr and stderr.count("\n") == 1
