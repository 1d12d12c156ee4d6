"""The choice of learning rates in a study (studies/results.py), and its table."""

from commands import ROOT

from demo_sdtps.evaluation.tables import markdown_table
from studies.report import rates_table
from studies.results import (
    choice,
    chosen_rates,
    families,
    final_metric,
    finalists,
    next_rates,
    read_result,
    write_result,
)


def grid_result(maps):
    """A result with a grid: mAP in percent by variant, rate and seed."""
    variants = [
        {
            "name": f"{family}, {rate:g}",
            "family": family,
            "rate": rate,
            "runs": {
                str(seed): {"patterns": {"3": {"mAP": one / 100}}} for seed, one in seeds.items()
            },
        }
        for family, rates in maps.items()
        for rate, seeds in rates.items()
    ]
    return {"title": "", "patterns": [3], "variants": variants}


def test_the_search_ends_where_the_best_rate_has_its_neighbours():
    """From the middle of the grid, up or down, and to an end of it; a failed run counts as the worst."""
    grid = (0.001, 0.002, 0.003, 0.005, 0.008)
    maps = {name: {rate: {} for rate in grid} for name in ("up", "middle", "failed")}

    def search():
        names = next_rates(grid_result(maps)["variants"], 3)
        return [(family, float(rate)) for family, rate in (name.split(", ") for name in names)]

    assert search() == [(family, rate) for family in maps for rate in (0.002, 0.003, 0.005)]
    maps["up"] |= {0.002: {101: 50.0}, 0.003: {101: 40.0}}  # as where a study was stopped
    assert search()[:2] == [("up", 0.001), ("up", 0.005)]
    maps["up"] = {rate: {} for rate in grid}
    for family, best in {"up": 0.005, "middle": 0.003, "failed": 0.002}.items():
        maps[family] |= {rate: {101: 40.0} for rate in (0.002, 0.003, 0.005)} | {best: {101: 50.0}}
    assert search() == [("up", 0.008), ("failed", 0.001)]
    maps["up"][0.008] = {101: 60.0}
    result = grid_result(maps)
    result["variants"][2 * len(grid)]["runs"] = {"101": {"failed": "diverged"}}
    assert next_rates(result["variants"], 3) == []


def test_the_search_chooses_what_the_whole_grid_chose():
    """docs/results/rates.json has every rate of its grid (docs/results.md, protocol)."""
    whole = read_result(ROOT / "docs" / "results" / "rates.json")
    searched = [one | {"runs": {}} for one in whole["variants"]]
    runs = {one["name"]: one["runs"] for one in whole["variants"]}
    while names := next_rates(searched, 3):
        for one in searched:
            if one["name"] in names:
                one["runs"] = {"101": runs[one["name"]]["101"]}
    names = finalists(searched, 3)
    for one in searched:
        if one["name"] in names:
            one["runs"] = runs[one["name"]]
            assert len(final_metric(one, 3, "mAP")) == 2
    chosen, expected = (
        {name: choice(members, 3)["rate"] for name, members in families(variants).items()}
        for variants in (searched, whole["variants"])
    )
    assert chosen == expected


def test_the_rate_with_the_best_mean_of_all_seeds_is_chosen(tmp_path):
    maps = {
        "dense": {0.001: {101: 50.0}, 0.002: {101: 61.0}, 0.003: {101: 62.0}, 0.005: {101: 58.0}},
        "slim": {0.001: {101: 50.0}, 0.002: {}, 0.003: {101: 40.0}, 0.005: {101: 30.0}},
    }
    names = finalists(grid_result(maps)["variants"], 3)
    assert sorted(names) == [
        *("dense, 0.002", "dense, 0.003", "dense, 0.005"),
        *("slim, 0.001", "slim, 0.003", "slim, 0.005"),
    ]
    later = {0.001: 9, 0.002: 8, 0.003: 7, 0.005: 6}  # seed 99 is the first
    both = {rate: {101: two, 99: -two} for rate, two in later.items()}
    names = finalists(grid_result({"x": both})["variants"], 3)
    assert sorted(names) == ["x, 0.002", "x, 0.003", "x, 0.005"]
    for rate, second in {0.002: 63.0, 0.003: 61.5, 0.005: 57.0}.items():
        maps["dense"][rate][102] = second
    for rate in (0.001, 0.003, 0.005):
        maps["slim"][rate][102] = maps["slim"][rate][101]
    maps["slim"][0.002] = {101: 90.0}  # one seed proves nothing
    write_result(tmp_path / "rates.json", grid_result(maps))
    write_result(tmp_path / "other.json", grid_result({"else": {0.1: {101: 1.0}}}))
    assert chosen_rates(tmp_path) == {"dense": 0.002, "slim": 0.001}
    assert "| dense | 50.0 | **62.0** | 61.8 | 57.5 |" in markdown_table(
        *rates_table(grid_result(maps))
    )
