"""Missing modalities: one case by TEST.MISS, and all six at once from one pass of the backbone (docs/method.md)."""

from contextlib import nullcontext

import pytest
import torch
from commands import FUSION, near, parse_table, read_cases, table_rows
from golden_cases import relative_error
from numeric import assert_close, shift_seed
from return_patterns import expected_patterns
from tiny import CAMERAS, SHALLOW, clear, equal, pairs, random_images, tiny_cfg, tiny_model

from demo_sdtps.commands import test as test_net
from demo_sdtps.config import UserError
from demo_sdtps.config.common import MISSING_CASES, MODALITIES
from demo_sdtps.evaluation.protocol import extract_patterns, missing_cases
from demo_sdtps.modeling.modalities import is_missing
from tests.reference.fusion import MODALITIES_OF

pytestmark = pytest.mark.usefixtures("shallow")
MISSING = {"nothing": []} | {
    case: modalities for case, modalities in MODALITIES_OF.items() if len(modalities) < 3
}
CASES = [frozenset(modalities) for modalities in MISSING.values()]
MODELS = {
    "SDTPS, guided by missing": ((), True),
    "SDTPS, not guided by missing": ((), False),
    "DeMo": (("MODEL.USE_SDTPS", "False", *FUSION, "MODEL.DIRECT", "0"), True),
    "both, not guided by missing": (FUSION, False),
    "class tokens": (("MODEL.GLOBAL_LOCAL", "False"), True),
}
SLOWEST = "SDTPS, not guided by missing"
GUIDE = "MODEL.SDTPS_GUIDE_MISSING"


def with_zeros(images, missing):
    return {
        modality: torch.zeros_like(image) if modality in missing else image
        for modality, image in images.items()
    }


@pytest.mark.parametrize(
    ("opts", "is_guided"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name == SLOWEST))
        for name, case in MODELS.items()
    ],
)
@torch.no_grad()
def test_all_cases_equal_each_alone(opts, is_guided):
    """Whatever the cases beside it, and two cameras only in the batch. Where the missing modalities guide the choice of
    patches, a case is what the complete model answers to images of zeros; else what is made without that choice."""
    cameras = torch.tensor([3, 1])
    model, images, _ = clear(
        lambda attempt: (
            tiny_model(GUIDE, is_guided, *opts, seed=100 * attempt).eval(),
            random_images(1 + 100 * attempt, batch=2)[0],
            cameras,
        ),
        CASES,
    )
    together = extract_patterns(model, images, cameras, CASES)
    for missing, patterns in zip(CASES, together, strict=True):
        expected = expected_patterns(model, with_zeros(images, missing), cameras)
        (alone,) = extract_patterns(model, images, cameras, [missing])
        assert list(patterns) == list(expected) == [1, 2, 3]
        for pattern, feature in patterns.items():
            assert feature.shape == expected[pattern].shape
            assert_close(alone[pattern], feature, *SHALLOW, *SHALLOW)
            if model.sdtps and missing and pattern > 1 and not is_guided:
                assert relative_error(feature, expected[pattern]) > 1e-3, (missing, pattern)
            else:
                assert_close(feature, expected[pattern], *SHALLOW)
    for place, patterns in enumerate(together):
        for other in together[:place]:
            assert all(
                relative_error(patterns[pattern], other[pattern]) > 0.001 for pattern in patterns
            )


@torch.no_grad()
def test_complete_triplets_are_the_same_whether_missing_modalities_guide_or_not():
    images, cameras = random_images(4)
    actual = []
    for is_guided in (True, False):
        model = tiny_model(GUIDE, is_guided, *FUSION)
        torch.manual_seed(shift_seed(5))  # HDM has dropout
        trained = model.train()(images, cameras)
        complete, *_ = extract_patterns(model.eval(), images, cameras, CASES)
        actual.append([torch.as_tensor(value) for value in (*pairs(trained), *complete.values())])
    assert len(actual[0]) == 3 * 2 + 3
    assert equal(*actual)


def backbone_inputs(model, call):
    """The images that a call sends through the backbone, one by one."""
    images = []
    handle = model.backbone.register_forward_pre_hook(
        lambda _, inputs: images.extend(inputs[0].unbind())
    )
    call()
    handle.remove()
    return images


@pytest.mark.parametrize(
    ("modalities", "cases"), [("RGB", ""), ("RGB TI", "r t"), ("RGB NI TI", "r n t rn rt nt")]
)
def test_not_all_modalities_of_a_model_may_be_missing(modalities, cases):
    names = modalities.split()
    assert [*missing_cases(names)] == ["nothing", *cases.split()]
    for case in MISSING_CASES:
        words = ["MODEL.MODALITIES", names, "TEST.MISS", case]
        with nullcontext() if case in cases.split() else pytest.raises(UserError, match="not all"):
            tiny_cfg(*words)


def test_an_image_of_zeros_alone_is_missing():
    images = torch.zeros(3, 3, 4, 2)
    images[1, 2, 3, 1] = images[2] = 0.1
    assert is_missing({"NI": images})["NI"].tolist() == [[True], [False], [False]]


@pytest.mark.parametrize("cases", [CASES, CASES[:1], CASES[3:5]], ids=["all", "complete", "two"])
@torch.no_grad()
def test_every_image_passes_the_backbone_once(cases):
    """A missing one only where another case has it; zeros once per camera and modality at most."""
    model = tiny_model().eval()
    batch = 9
    images, cameras = random_images(2, batch=batch)
    inputs = backbone_inputs(model, lambda: extract_patterns(model, images, cameras, cases))
    needed = [
        modality for modality in MODALITIES if any(modality not in missing for missing in cases)
    ]
    zeros = [image for image in inputs if image.eq(0).all()]
    for modality in MODALITIES:
        for image in images[modality]:
            assert sum(torch.equal(image, other) for other in inputs) == (modality in needed)
    assert len(inputs) - len(zeros) == len(needed) * batch
    assert len(zeros) <= len(MODALITIES) * CAMERAS
    assert bool(zeros) == any(cases)


def test_one_table_of_all_cases(fused_words, success, tmp_path):
    """As each case alone gives, which is computed in other batches."""
    words = (test_net.main, *fused_words, "TEST.MISS")
    stdout = success(*words, "all", "--json", tmp_path / "all.json")
    actual = read_cases(tmp_path / "all.json")
    assert list(actual) == ["nothing", *MISSING_CASES]
    assert len({str(record) for record in actual.values()}) == len(actual), (
        "every case has numbers of its own"
    )
    for miss, record in actual.items():
        success(*words, miss, "--overwrite", "--json", tmp_path / "one.json")
        assert read_cases(tmp_path / "one.json") == {miss: near(record)}

    _, header, *lines = stdout.splitlines()
    label = len(header) - len(header.removeprefix("missing").lstrip())
    tables = [
        parse_table("\n".join(row[label:] for row in lines[start : start + 3]))
        for start in range(0, len(lines), 3)
    ]
    assert tables[:-1] == [table_rows(record) for record in actual.values()]
    for pattern, row in tables[-1].items():
        of_six = zip(*(actual[miss][pattern].values() for miss in MISSING_CASES), strict=True)
        assert [float(number) for number in row] == [
            pytest.approx(100 * sum(values) / 6, abs=0.0501) for values in of_six
        ]
