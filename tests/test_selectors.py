"""A token selector is one file and one line: every command serves it, and SDTPS and its variants are such selectors."""
import ast
import json
import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import BASELINE, ONE_LINE, ROOT, cli_args_for
from interrupted import call
from numeric import generator, seeded
from PIL import Image
from timm.layers import QuickGELU
from tiny import PATCHES, WIDTH, random_images, tiny_cfg, tiny_model

from demo_sdtps import test_net, train_net
from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.engine.evaluation.selection import detectors
from demo_sdtps.engine.optim import parameter_groups
from demo_sdtps.engine.study import as_markdown
from demo_sdtps.modeling import make_model, sdtps
from demo_sdtps.modeling.sdtps import MultiModalSDTPS
from demo_sdtps.modeling.selectors import SELECTORS, make_selector, selector_name
from demo_sdtps.modeling.selectors.base import Context, Selector
from demo_sdtps.modeling.weights import from_demo, to_demo, unknown_names
from demo_sdtps.tools import convert_checkpoint, draw_tokens, export_features, profile_flops, report, selection_quality
from demo_sdtps.tools.study import make_variants, read_study, steps

PAGE = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
ON = ("MODEL.USE_SDTPS", "False", "MODEL.SELECTOR")
KEPT = PATCHES // 2


@contextmanager
def registered(folder):
    """Inside, the example of docs/method.md is a file of `folder` and a line of the registry."""
    file, line = re.findall(r"```python\n(.*?)```", PAGE.partition("## Adding a token selector")[2], re.S)
    (folder / "gated_selector.py").write_text(file, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name, place in ast.literal_eval(f"{{{line}}}").items():
            patch.setitem(SELECTORS, name, place.replace("demo_sdtps.modeling.selectors.gated", "gated_selector"))
        yield


@pytest.fixture(scope="module")
def run(tiny_root, tmp_path_factory):
    """A training with that selector and HDM → (the words of its configuration, its folder)."""
    folder = tmp_path_factory.mktemp("selector")
    with registered(folder):
        words = cli_args_for(tiny_root, *ON, "gated", "MODEL.HDM", "True", "SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0",
                          "SOLVER.EVAL_UNTRAINED", "True")
        assert call([*words, "OUTPUT_DIR", folder / "run"]) == 0
        yield words, folder / "run"


def test_its_weights_are_trained_under_its_name(run):
    """By the rates of everything but the backbone."""
    _, folder = run
    weights = torch.load(folder / "last.pth", weights_only=True)["model"]
    assert {"gated.gate.weight", "gated.gate.bias", "heads.gated.classifier.weight"} <= weights.keys()
    cfg = load_cfg(folder / "config.yml")
    torch.manual_seed(cfg.SOLVER.SEED)
    model = make_model(cfg, *(torch.load(folder / "last.pth", weights_only=True)[name] for name in ("num_class", "camera_num")))
    assert model.pair_weights == dict.fromkeys(model.heads, 1.0) and list(model.heads) == ["gated", "moe", "original"]
    for name in ("gated.gate.weight", "heads.gated.classifier.weight"):
        parameter = model.get_parameter(name)
        assert not torch.equal(weights[name], parameter)
        (rate,) = {group["lr"] for group in parameter_groups(cfg, model) for one in group["params"] if one is parameter}
        assert rate == cfg.SOLVER.BASE_LR


def test_every_command_serves_it(run, command, tmp_path, tiny_root):
    words, folder = run
    weights = ("--weight", folder / "last.pth", "DATASETS.ROOT_DIR", tiny_root)
    evaluated = [command(test_net.main, *weights, "--json", tmp_path / "all.json", "TEST.MISS", "all"),
                 command(export_features.main, *weights, "--split", "query", "--return_pattern", "2", "--output",
                         tmp_path / "x.npz"),
                 command(draw_tokens.main, *weights, "--output", tmp_path / "tokens.png"),
                 command(selection_quality.main, *weights, "--json", tmp_path / "s.json", "--output", tmp_path / "s.png"),
                 command(profile_flops.main, *words),
                 command(report.main, "--run", folder)]
    assert [(code, stderr) for code, _, stderr in evaluated] == [(0, "")] * len(evaluated)
    assert len(json.loads((tmp_path / "all.json").read_text())["cases"]) == 7
    assert np.load(tmp_path / "x.npz")["features"].shape[1] == (3 + 7) * WIDTH
    for path in (tmp_path / "tokens.png", tmp_path / "s.png", folder / "tokens.png"):
        with Image.open(path) as image:
            assert min(image.size) > 100
    for cases in json.loads((tmp_path / "s.json").read_text())["cases"].values():
        for row in cases.values():
            assert row.keys() == {"base_rate", "kept", "recall", "score"} and 0 <= row["kept"] <= 1
    rows = {line.split()[0]: line.split()[1:] for line in evaluated[4][1].splitlines()[2:]}
    assert rows["Gated"][0] == str(WIDTH + 1) and float(rows["plain"][-1]) > 0
    assert "kept tokens" in evaluated[-1][1]


def test_its_weights_go_to_demos_names_and_back(run, command, tmp_path):
    _, folder = run
    code, stdout, stderr = command(convert_checkpoint.main, folder / "last.pth", tmp_path / "demo.pth", "--to", "demo")
    assert code == 0 and "no part of a model" not in stdout, stderr
    theirs = torch.load(tmp_path / "demo.pth", weights_only=True)
    assert {"gated.gate.weight", "bottleneck_gated.weight", "classifier_gated.weight"} <= theirs.keys()
    ours = torch.load(folder / "last.pth", weights_only=True)["model"]
    assert not unknown_names(from_demo(theirs)) and from_demo(theirs).keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in from_demo(theirs).items())


def test_a_study_measures_it(run, command, tmp_path):
    """Its selection too, whose table leaves empty what SDTPS alone has."""
    words, folder = run
    path = tmp_path / "study.yml"
    path.write_text(json.dumps({"config": str(BASELINE), "selection": True, "variants": {"none": {}, "gated": {"set": {
        "MODEL.SELECTOR": "gated"}}}}))
    study = read_study(path)
    products = [[product.name for _, product in steps(variant, 1, study)] for variant in make_variants(study, [], tmp_path)]
    assert products == [["run.json"], ["run.json", "selection.json"]]

    assert command(selection_quality.main, *words, "--weight", folder / "last.pth", "--json", tmp_path / "s.json")[0] == 0
    variant = {"name": "gated", "records": {}, "failed": {}, "missing": {}, "made_with": {},
               "selection": {"1": json.loads((tmp_path / "s.json").read_text())}}
    text = as_markdown({"title": "", "command": "", "seeds": [1], "patterns": [3], "variants": [variant]})
    (row,) = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| gated | NI |" in line)
    assert row[6:10] == ["–"] * 4 and float(row[5]) > 0


class Longest(Selector):
    """No weights and nothing but a score, as may stand between two blocks of the backbone."""

    def score(self, tokens, context):
        return tokens.norm(dim=-1)


class Shared(Longest):
    """One set of indices for the three modalities."""

    def scores(self, context):
        total = sum(super().scores(context).values())
        return dict.fromkeys(context.tokens, total)


class Strange(Selector):
    """With an operator that the profile has no rule for."""

    def score(self, tokens, context):
        return tokens.cumprod(dim=-1)[..., -1]


def test_an_operator_without_a_rule_is_reported_and_not_counted(command, monkeypatch, caplog):
    monkeypatch.setitem(SELECTORS, "strange", f"{__name__}:Strange")
    code, stdout, _ = command(profile_flops.main, *cli_args_for("nowhere", *ON, "strange"))
    assert code == 0 and "Not counted" in caplog.text and "aten::cumprod" in caplog.text
    (row,) = (line for line in stdout.splitlines() if line.startswith("Strange"))
    assert row.split()[1] == "0"


def context_of(seed, batch=3, width=24, grid=(4, 2), **more):
    draws = generator(seed)
    tokens, class_tokens = ({modality: torch.randn(batch, *shape, generator=draws) for modality in MODALITIES}
                            for shape in ((grid[0] * grid[1], width), (width,)))
    return Context(tokens, class_tokens, grid, **more)


@pytest.mark.parametrize("kind", [Longest, Shared])
def test_a_selector_inside_the_backbone(kind):
    """Without global features, at another width, with one set of indices per modality or one for all."""
    context = context_of(1)
    found = kind(tiny_cfg(), 24, (4, 2))(context)
    lengths = {modality: tokens.norm(dim=-1) for modality, tokens in context.tokens.items()}
    if kind is Shared:
        lengths = dict.fromkeys(MODALITIES, sum(lengths.values()))
    assert list(found) == list(MODALITIES)
    for modality, selection in found.items():
        best = lengths[modality].argsort(dim=1, descending=True, stable=True)[:, :4]
        assert torch.equal(selection.index, best) and torch.equal(selection.score, lengths[modality])
        assert torch.equal(selection.mask.nonzero()[:, 1].view(3, 4), best.sort(dim=1).values)
        for row in range(3):
            assert torch.equal(selection.tokens[row], context.tokens[modality][row, best[row]])
    first, *others = (selection.index for selection in found.values())
    assert all(torch.equal(first, other) for other in others) == (kind is Shared)


def test_a_patch_that_must_not_be_kept():
    context = context_of(2)
    free = Longest(tiny_cfg(), 24, (4, 2))(context)
    banned = {"NI": torch.ones(3, 8, dtype=torch.bool).scatter(1, free["NI"].index[:, :1], False)}
    found = Longest(tiny_cfg(), 24, (4, 2))(replace(context, mask=banned))
    assert not found["NI"].mask[~banned["NI"]].any() and found["NI"].mask.sum(dim=1).eq(4).all()
    assert torch.equal(found["NI"].index[:, :3], free["NI"].index[:, 1:])
    assert torch.equal(found["TI"].index, free["TI"].index)


def test_class_tokens_guide_sdtps_where_there_are_no_globals():
    selector = make_selector(tiny_cfg("MODEL.SDTPS_AGGR_RATIO", "0.8"), 24, (4, 2))
    context = context_of(3)
    with_globals = selector(replace(context, global_feats=context.class_tokens))
    for modality, selection in selector(context).items():
        assert torch.equal(selection.tokens, with_globals[modality].tokens)


class Projected(MultiModalSDTPS):
    """As the study made it before there was a contract."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.project = torch.nn.ModuleDict({modality: torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), QuickGELU()) for modality in MODALITIES})

    def forward(self, *tokens, **options):
        *slimmed, first, second, third = super().forward(*tokens, **options)
        return *(layer(part) for layer, part in zip(self.project.values(), slimmed, strict=True)), first, second, third


def centred(tokens, guides, plain=sdtps.cosine_guidance):
    return plain(tokens - tokens.mean(dim=(0, 1)), guides - guides.mean(dim=1, keepdim=True))


def subtracted(tokens, logits, decision):
    return sdtps.softmax_mean(tokens, logits.float() - (1 - decision.float()).unsqueeze(-2) * 1e10)


@pytest.mark.parametrize(("name", "kind", "patch"), [
    ("sdtps", MultiModalSDTPS, {}), ("sdtps_centred", MultiModalSDTPS, {"cosine_guidance": centred}),
    ("sdtps", Projected, {}), ("sdtps_1e10", MultiModalSDTPS, {"aggregate": subtracted})])
@pytest.mark.parametrize("missing", [(), ("NI",)], ids=["complete", "NI missing"])
def test_the_variants_are_what_patching_the_module_made(name, kind, patch, missing):
    """Values and gradients of a training forward with noise, to the last bit, and the same parameter names."""
    cfg = tiny_cfg(*ON, name, "MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.SDTPS_GUIDE_MISSING", "False",
                   "MODEL.SDTPS_PROJECTION", kind is Projected)
    selector, patched = make_selector(cfg, WIDTH, (8, 4)), kind(WIDTH, PATCHES, use_gumbel=True)
    patched.load_state_dict(selector.state_dict())
    context = context_of(4, batch=5, width=WIDTH, grid=(8, 4), missing=frozenset(missing))
    context = replace(context, global_feats={m: part + 1 for m, part in context.class_tokens.items()})
    torch.manual_seed(seeded(5))
    found = selector(context)
    torch.manual_seed(seeded(5))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for function, replacement in patch.items():
            monkeypatch.setattr(sdtps, function, replacement)
        expected = patched(*context.tokens.values(), *context.global_feats.values(),
                           missing=tuple(modality in missing for modality in MODALITIES))
    outputs = [*(selection.tokens for selection in found.values()), *(selection.mask for selection in found.values())]
    for one, other in zip(outputs, expected, strict=True):
        assert torch.equal(one, other)
    for part in (outputs, expected):
        sum((output * torch.arange(output.numel()).view_as(output).sin()).sum() for output in part).backward()
    gradients = dict(patched.named_parameters())
    for parameter_name, parameter in selector.named_parameters():
        assert torch.equal(parameter.grad, gradients[parameter_name].grad), parameter_name


@pytest.mark.parametrize(("opts", "name"), [
    (("MODEL.USE_SDTPS", "False"), ""), ((), "sdtps"), ((*ON, "sdtps"), "sdtps"), (("MODEL.SELECTOR", "sdtps"), "sdtps"),
    ((*ON, "sdtps_centred"), "sdtps_centred")])
def test_the_name_of_the_selector(opts, name):
    cfg = tiny_cfg(*opts)
    assert selector_name(cfg) == name
    model = tiny_model(*opts)
    assert (model.selector is None) == (name == "") and list(model.heads) == [*([name] if name else []), "original"]
    plain, switched = tiny_model().state_dict(), model.state_dict()
    assert name != "sdtps" or all(torch.equal(plain[key], switched[key]) for key in plain)


@pytest.mark.parametrize(("opts", "parts"), [
    (("MODEL.SELECTOR", "sdtps_centred"), ["MODEL.USE_SDTPS is True", "MODEL.SELECTOR is 'sdtps_centred'"]),
    ((*ON, "sdtps_centered"), ["MODEL.SELECTOR is 'sdtps_centered'", "'sdtps' or ", "the nearest is 'sdtps_centred'"])])
def test_a_mistake_is_one_sentence(command, tiny_root, tmp_path, opts, parts):
    code, stdout, stderr = command(train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", *opts))
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
    assert all(part in stderr for part in parts) and not (tmp_path / "run").exists()


def test_settings_that_do_not_fit_name_their_keys():
    with pytest.raises(UserError, match=r"^MODEL\.SDTPS_SPARSE_RATIO and MODEL\.SDTPS_AGGR_RATIO do not fit"):
        tiny_model(*ON, "sdtps_centred", "MODEL.SDTPS_SPARSE_RATIO", "0.1", "MODEL.SDTPS_AGGR_RATIO", "0.1")


@pytest.mark.parametrize("name", list(SELECTORS))
def test_sdtps_and_its_variants_keep_their_parameters_under_their_names(name):
    model = tiny_model(*ON, name, "MODEL.HDM", True)
    weights = model.state_dict()
    assert {f"{name}.rgb_sparse.score_predictor.0.weight", f"{name}.tir_aggr.scale", f"heads.{name}.bottleneck.weight"} <= \
        weights.keys()
    assert not unknown_names(weights) and from_demo(to_demo(weights)).keys() == weights.keys()
    assert model.select_tokens(model.encode(*random_images(1)))["RGB"].index.shape == (4, KEPT)


def test_an_unknown_selector_is_rejected_before_any_data_are_read(command):
    code, _, stderr = command(train_net.main, *cli_args_for("/nowhere", "MODEL.USE_SDTPS", "False", "MODEL.SELECTOR", "sdtp"))
    assert code == 2 and "MODEL.SELECTOR is 'sdtp'" in stderr and "the nearest is 'sdtps'" in stderr


@pytest.mark.parametrize("name", ["moe", "heads", "RGB"])
def test_a_selector_cannot_have_the_name_of_another_part(name, monkeypatch):
    monkeypatch.setitem(SELECTORS, name, SELECTORS["sdtps"])
    with pytest.raises(ValueError, match=f"'{name}' has the name of another part"):
        tiny_model("MODEL.USE_SDTPS", False, "MODEL.SELECTOR", name)


def test_a_masked_patch_is_kept_by_no_selector_and_measured_all_the_same():
    model = tiny_model().eval()
    with torch.no_grad():
        context = model.encode(*random_images(3))
        mask = {modality: torch.rand(4, PATCHES).argsort(dim=1) < KEPT + 6 for modality in MODALITIES}
        context = replace(context, mask=mask)
        selections = model.select_tokens(context)
        found = detectors(model, context, selections)
    for modality, selection in selections.items():
        assert not selection.mask[~mask[modality]].any() and selection.tokens.isfinite().all()
        assert set(found[modality]) == {"score", "MLP", *MODALITIES}
