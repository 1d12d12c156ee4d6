"""Features that are not finite are refused wherever they are compared, searched or stored; what is present follows rows."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from ranking_cases import random_case

import demo_sdtps
from demo_sdtps.commands import search
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.evaluation.distances import (
    Comparison,
    NotFiniteError,
    set_distances,
)
from demo_sdtps.evaluation.metrics import evaluate_ranking
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.evaluation.reranking import k_reciprocal, rerank
from demo_sdtps.retrieval.engine import table_schema
from demo_sdtps.retrieval.features import row_checks
from demo_sdtps.retrieval.nearest import nearest, search_sets
from demo_sdtps.retrieval.table import create_table

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = ()
LARGEST = 1.5e19  # whose square is finite, but not a distance
BAD = [np.nan, np.inf, -np.inf, 1e25, LARGEST]
WHOLE = np.ones((20, 3), bool)


@pytest.fixture(scope="module")
def reid(weights):
    return demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")


def doors(reid):
    """Functions of the features of queries and a gallery, 20 of 8 columns each."""
    labels = [labels[:20] for labels in random_case(3)[2:]]
    sides = lambda query, gallery: ((query, WHOLE), (gallery, WHOLE))  # noqa: E731
    stated = lambda side: demo_sdtps.Features(side.numpy(), np.full(20, 7))  # noqa: E731
    cfg = load_cfg("RGBNT201/DeMo.yml")
    return {
        "evaluate_ranking": lambda *both: evaluate_ranking(*both, *labels),
        "set_distances": lambda *both: set_distances(Comparison(), *sides(*both)),
        "k_reciprocal": lambda *both: k_reciprocal(*both, 5, 3),
        "rerank": lambda *both: rerank(Comparison(), *sides(*both)),
        "normalise": lambda *both: normalise(cfg, torch.cat(both)),
        "distance": lambda *both: reid.distance(*map(stated, both)),
        "search": lambda *both: reid.search(*map(stated, both)),
    }


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("side", [0, 1], ids=["query", "gallery"])
def test_features_that_are_not_finite_are_compared_nowhere(reid, side, value):
    """One number of one row, whose identity no query has."""
    both = [torch.randn(20, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    for call in doors(reid).values():
        call(*both)
    both[side][13, 5] = value
    for name, call in doors(reid).items():
        with pytest.raises(NotFiniteError, match=r"1 of \d+, the first is row (13|33) ") as refused:
            call(*both)
        assert isinstance(refused.value, UserError) and isinstance(refused.value, ValueError), name


@pytest.mark.parametrize("value", BAD[:4])
def test_a_model_whose_features_are_not_finite_has_none(weights, files, value):
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    reid.model.backbone.vit.norm.bias.data[3] = value
    with pytest.raises(UserError, match="The network's features are not finite"):
        reid.features(**files)


def test_a_table_holds_finite_features_alone(tmp_path, monkeypatch):
    schema = table_schema({"name": "string", "present": "string"}, 4)
    table = create_table(tmp_path / "table", {}, schema, "make it anew")
    features = np.eye(3, 4, dtype=np.float32)
    columns = {"name": list("abc"), "present": ["RGB,NI,TI"] * 3}
    table.put(columns, features)
    query = torch.eye(1, 4) * torch.nan, WHOLE[:1]
    with pytest.raises(NotFiniteError, match="features of queries"):
        search_sets(Comparison(), query, table.read(), 2, nearest)
    features[1, 2] = np.nan
    with pytest.raises(NotFiniteError, match="1 of 3, the first is row 1 ") as refused:
        table.put(columns, features)
    assert str(tmp_path) in str(refused.value) and len(table.read()) == 3
    monkeypatch.setattr("demo_sdtps.retrieval.table.check_finite", lambda *_: None)
    table.put(columns, features)
    monkeypatch.undo()
    for read in (
        lambda rows: rows.features.take(rows.features.rows),
        lambda rows: [*rows.features.blocks("")],
    ):
        with pytest.raises(NotFiniteError, match="1 of 3"):
            read(table.read())


def test_exported_features_that_are_not_finite_are_not_ranked(export, refusal):
    export("q.npz", "--split", "query")
    with np.load("q.npz") as content:
        arrays = dict(content)
    arrays["features"][2, 0] = np.inf
    np.savez("bad.npz", **arrays)
    for words in (("bad.npz", "q.npz"), ("q.npz", "bad.npz")):
        for more in ((), ("--feat_norm", "no"), ("--csv", "x.csv")):
            told = refusal(search.rank, "--query", words[0], "--gallery", words[1], *more)
            assert "bad.npz" in told and "1 of" in told and "row 2" in told


CODES = np.array([1, 3, 7, 7, 2, 5], np.uint8)


def drawn():
    return demo_sdtps.Features(np.random.default_rng(0).random((6, 4)), CODES)


def expected_codes(features):
    """By the rows' contents."""
    codes = {row.tobytes(): code for row, code in zip(np.asarray(drawn()), CODES, strict=True)}
    return [codes[row.tobytes()] for row in np.asarray(features)]


COPIES = {
    "pickle": lambda features: pickle.loads(pickle.dumps(features)),
    "old pickle": lambda features: pickle.loads(pickle.dumps(features, protocol=2)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "method": lambda features: features.copy(order="F"),
    "slice": lambda features: features[::-2],
    "indices": lambda features: features[[4, 4, 0]],
    "mask": lambda features: features[CODES == 7],
    "tuple": lambda features: features[1:3, :],
    "take": lambda features: np.take(features, [3, 1], axis=0),
    "flip": lambda features: np.flip(features, axis=0),
    "repeat": lambda features: np.repeat(features, 2, axis=0),
    "delete": lambda features: np.delete(features, 2, axis=0),
    "rows of rows": lambda features: pickle.loads(pickle.dumps(features[1:][[2, 0]]))[1:],
}
MOVES = {
    "shuffle": lambda features: np.random.default_rng(1).shuffle(features),
    "legacy shuffle": lambda features: np.random.RandomState(1).shuffle(features),
    "python shuffle": lambda features: random.Random(1).shuffle(features),
    "row": lambda features: features.__setitem__(0, features[5]),
    "rows": lambda features: features.__setitem__([0, 1], features[[1, 0]]),
    "in memory": lambda features: np.asarray(features)[:].__setitem__(2, np.asarray(features)[1]),
    "torch": lambda features: torch.from_numpy(features)[3].copy_(torch.from_numpy(features)[0]),
    "a view": lambda features: features[2:].__setitem__(0, features[5]),
    "take": lambda features: np.take(drawn(), [5, 4, 3, 2, 1, 0], axis=0, out=features),
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_what_is_present_follows_rows_that_are_copied(make):
    features = make(drawn())
    assert features.present.tolist() == expected_codes(features) and features.dtype == np.float32


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_what_is_present_follows_rows_that_are_moved(move):
    features = drawn()
    move(features)
    assert expected_codes(features) != CODES.tolist() or move is MOVES["python shuffle"]
    assert features.present.tolist() == expected_codes(features)
    assert features[1:4].present.tolist() == expected_codes(features[1:4])


def test_what_is_present_is_not_known_of_other_rows():
    features = drawn()
    features[2, 1] = 0
    assert features.present is None and features[2:4].present is None
    assert features[3:].present.tolist() == [7, 2, 5]
    for other in (drawn() * 2, drawn()[:, :3], drawn()[0], drawn().T, drawn().mean(0)):
        assert other.present is None
    equal = demo_sdtps.Features(np.ones((3, 2)), [1, 3, 7])
    assert equal[1:].present.tolist() == [3, 7] and np.take(equal, [2], axis=0).present is None


@pytest.mark.parametrize("codes", [[1, 2, 8], [1, -1, 7], [1, 2, 300], [1, 1.5, 2]])
def test_what_is_present_is_a_set_of_modalities(codes):
    with pytest.raises(UserError, match="the sum of 1 for RGB"):
        demo_sdtps.Features(np.ones((3, 2)), codes)


def test_a_copy_changes_nothing_of_what_is_present():
    features = drawn()
    with pytest.raises(ValueError, match="read-only"):
        features.copy().present[0] = 1


def test_checksums_of_rows_tell_the_order_of_words():
    rows = np.arange(12, dtype=np.float32).reshape(2, 6)
    checks = row_checks(rows)
    assert not (row_checks(rows[:, [2, 3, 0, 1, 4, 5]]) == checks).any()
    assert (row_checks(rows[::-1]) == checks[::-1]).all()


@pytest.mark.parametrize("top", [1.5, float("nan"), -1, 0, True, "2", None, 2.0], ids=repr)
def test_a_top_that_is_no_whole_number_is_refused(reid, top):
    features = demo_sdtps.Features(np.eye(3, 8), [7, 7, 7])
    with pytest.raises(UserError, match="and the gallery has 3 triplets; both must be whole"):
        reid.search(features, features, top)
    assert reid.search(features, features, np.int64(2)).rows.shape == (3, 2)


def test_tensors_are_features_of_whatever_type(reid):
    """Of 8 bits of mantissa, as of bfloat16, so that nothing is rounded; with gradients they are detached."""
    values = torch.randint(-99, 99, (5, 8)).float()
    rows, distances = reid.search(values.numpy(), values.numpy(), 5)
    for one in (torch.nn.Parameter(values), 1 * torch.nn.Parameter(values), values.bfloat16()):
        for query, gallery in ((one, values.numpy()), (values.numpy(), one)):
            hits = reid.search(query, gallery, 5)
            assert np.array_equal(hits.rows, rows) and np.array_equal(hits.distances, distances)
        features = demo_sdtps.Features(one, torch.full((5,), 7))
        assert np.array_equal(features, values.numpy()) and features.present.tolist() == [7] * 5
    for wrong in (None, "x", [[1.0, 2.0], [3.0]], values.to_sparse(), 1j * values):
        for call in (reid.distance, lambda one, other: demo_sdtps.Features(one, [7] * 5)):
            with pytest.raises(UserError, match="The features "):
                call(wrong, values)
