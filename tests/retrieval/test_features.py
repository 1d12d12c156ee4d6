"""`demo_sdtps.Features`, and features that are not finite, which are refused wherever they are compared, searched or stored."""

import copy
import pickle

import numpy as np
import pytest
import torch
from ranking_cases import random_case

import demo_sdtps
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.evaluation.distances import (
    Comparison,
    NotFiniteError,
    k_reciprocal,
    rerank,
    set_distances,
)
from demo_sdtps.evaluation.metrics import evaluate_ranking
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.retrieval.table import create_table

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = ()
WHOLE = np.ones((20, 3), bool)
CODES = np.array([1, 3, 7, 7, 2, 5], np.uint8)


@pytest.fixture(scope="module")
def reid(weights):
    return demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")


def doors(reid):
    """Functions of the features of queries and a gallery, 20 of 8 columns each."""
    labels = [labels[:20] for labels in random_case(3)[2:]]
    sides = lambda query, gallery: ((query, WHOLE), (gallery, WHOLE))  # noqa: E731
    stated = lambda side: demo_sdtps.Features(side, np.full(20, 7))  # noqa: E731
    return {
        "evaluate_ranking": lambda *both: evaluate_ranking(*both, *labels),
        "set_distances": lambda *both: set_distances(Comparison(), *sides(*both)),
        "k_reciprocal": lambda *both: k_reciprocal(*both, 5, 3),
        "rerank": lambda *both: rerank(Comparison(), *sides(*both)),
        "normalise": lambda *both: normalise(load_cfg("RGBNT201/DeMo.yml"), torch.cat(both)),
        "distance": lambda *both: reid.distance(*map(stated, both)),
        "search": lambda *both: reid.search(*map(stated, both)),
    }


# the square of the last one is finite, but not a distance
@pytest.mark.parametrize("value", [np.nan, np.inf, 1.5e19])
@pytest.mark.parametrize("side", [0, 1], ids=["query", "gallery"])
def test_features_that_are_not_finite_are_compared_nowhere(reid, side, value):
    """One number of one row, whose identity no query has."""
    both = [torch.randn(20, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    for call in doors(reid).values():
        call(*both)
    both[side][13, 5] = value
    for call in doors(reid).values():
        with pytest.raises(NotFiniteError, match=r"1 of \d+, the first is row (13|33) "):
            call(*both)


def test_a_model_whose_features_are_not_finite_has_none(weights, files):
    reid = demo_sdtps.load(weights, "MODEL.DEVICE", "cpu")
    reid.model.backbone.vit.norm.bias.data[3] = np.nan
    with pytest.raises(UserError, match="The network's features are not finite"):
        reid.features(**files)


def test_a_table_holds_finite_features_alone(tmp_path):
    table = create_table(tmp_path / "table", {}, {"name": "string", "present": "string"}, 4)
    features, columns = np.eye(3, 4, dtype=np.float32), {"name": [*"abc"], "present": 3 * ["RGB"]}
    table.put(columns, features)
    features[1, 2] = np.nan
    with pytest.raises(NotFiniteError, match="1 of 3, the first is row 1 "):
        table.put(columns, features)
    assert np.array_equal(table.side()[1][0], np.eye(3, 4))


@pytest.fixture
def features():
    return demo_sdtps.Features(np.random.default_rng(0).random((6, 4)), CODES)


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda one: pickle.loads(pickle.dumps(one)), range(6)),
        (copy.deepcopy, range(6)),
        (copy.deepcopy, range(6)),
        (lambda one: one[::-2], [5, 3, 1]),
        (lambda one: one[[4, 4, 0]], [4, 4, 0]),
        (lambda one: one[CODES == 7], [2, 3]),
        (lambda one: one[np.int64(-1)], [5]),
        (lambda one: one.concatenate([one[1:3], one[:1]]), [1, 2, 0]),
        (lambda one: one.concatenate([*one]), range(6)),
    ],
)
def test_rows_keep_what_is_present(features, make, rows):
    made, rows = make(features), [*rows]
    assert np.array_equal(made.present, CODES[rows]) and made.present.dtype == np.uint8
    assert np.array_equal(made, features.values[rows]) and made.values.dtype == np.float32
    assert made.shape == (len(rows), 4) and len(made) == len(rows)
    made.values[:], made.present[:] = 0, 1  # in memory of their own
    assert features.values.all() and np.array_equal(features.present, CODES)


@pytest.mark.parametrize("codes", [[1, 2, 8], [1, -1, 7], [1, 1.5, 2], [1, 2]])
def test_what_is_present_is_a_set_of_modalities_of_each_row(codes):
    with pytest.raises(UserError, match="the sum of 1 for RGB"):
        demo_sdtps.Features(np.ones((3, 2)), codes)


def test_values_are_numbers_of_any_type():
    """Of 8 bits of mantissa, as of bfloat16, so that nothing is rounded; of tensors with gradients too."""
    values = torch.randint(-99, 99, (5, 8)).float()
    for one in (torch.nn.Parameter(values), values.bfloat16(), values.double().numpy()):
        assert np.array_equal(demo_sdtps.Features(one, torch.full((5,), 7)), values.numpy())
    for wrong in (None, [[1.0, 2.0], [3.0]], values.to_sparse(), 1j * values.numpy(), values[0]):
        with pytest.raises(UserError, match="The features "):
            demo_sdtps.Features(wrong, [7] * 5)
