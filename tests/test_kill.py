"""Trainings that are really killed, at random moments and while they save (tools/kill_test.py)."""
import json

import pytest
import torch

from demo_sdtps.tools import kill_test


@pytest.mark.slow
@pytest.mark.soak
def test_a_killed_run_ends_as_one_that_nobody_disturbed(tmp_path, monkeypatch, capsys):
    """Killed at any moment, and likewise: one of two starts at once is refused, SIGHUP saves, a full /dev/shm is named."""
    monkeypatch.setattr(kill_test, "KINDS", tuple(dict.fromkeys(kill_test.KINDS)))
    kill_test.main(["--kills", str(len(kill_test.KINDS)), "--epochs", "3", "--json", str(tmp_path / "x.json")])
    found = json.loads((tmp_path / "x.json").read_text())
    assert not found["differences"] and {kill["kind"] for kill in found["kills"]} == {*kill_test.KINDS}
    assert f"{len(kill_test.KINDS)} kills" in capsys.readouterr().out


def test_each_round_of_kills_has_all_kinds():
    size = len(kill_test.KINDS)
    for seed in range(3):
        kinds = [kill_test.kind_of(seed, number) for number in range(3 * size)]
        assert {*kinds} == {*kill_test.KINDS} and kinds[:size] != kinds[size:2 * size]
        assert all(sorted(kinds[start:start + size]) == sorted(kill_test.KINDS) for start in range(0, 3 * size, size))


def test_a_run_that_ends_before_its_kill_is_followed_by_another(tmp_path, monkeypatch):
    """The first run here is over before each of its kills; the others are as long as wanted."""
    asked = []

    def kills(command, output, options, seconds, numbers):
        asked.append(list(numbers))
        yield from ({"after": 0.0} for _ in numbers if len(asked) > 1)

    for name, stand_in in (("make_data", lambda *_: []), ("uninterrupted", lambda *_: 1.0), ("killed", kills),
                           ("differing", lambda *_: [])):
        monkeypatch.setattr(kill_test, name, stand_in)
    found = kill_test.kill_test(tmp_path, kill_test.parser().parse_args(["--kills", "2"]))
    assert asked == [[0, 1], [1, 2]] and (len(found["kills"]), found["runs"]) == (2, 2)


def test_differences_are_found(tmp_path):
    for name, changed in (("one", 0.0), ("other", 1e-9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(name)
        for file in ("last.pth", "best.pth"):
            torch.save({"model": {"a": torch.tensor([changed])}, "epoch": 1, "meter": {"seconds": changed}},
                       tmp_path / name / file)
    found = kill_test.differing(tmp_path / "one", tmp_path / "other")
    assert found == ["metrics.json", "last.pth /model/a", "best.pth /model/a"]
    assert not kill_test.differing(tmp_path / "one", tmp_path / "one")


def test_the_table_says_whether_runs_differ():
    kill = {"kind": "SIGKILL", "run": 1, "after": 0.5, "during": "saving last.pth", "log": "from the beginning"}
    found = {"command": "train_net", "epochs": 2, "runs": 1, "kills": [kill], "differences": []}
    assert "bit for bit" in kill_test.table(found) and "1 of them while saving" in kill_test.table(found)
    assert "DIFFER from" in kill_test.table(found | {"differences": ["run 1: metrics.json"]})
