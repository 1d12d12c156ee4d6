"""A study's YAML file goes through the same checks as a configuration."""
import pytest

from demo_sdtps.config import UserError
from demo_sdtps.tools import study as tool


@pytest.mark.parametrize(("content", "said"), [
    (None, "cannot be read (No such file or directory); give a YAML file such as studies/modules.yml"),
    (b"title: L\xe4ufe", "cannot be read ("), (b"title: [", "is not valid YAML at line 1"), (b"\0", "is not valid YAML"),
    (b"seeds: 3\nseeds: 5", "is not valid YAML at line 2: seeds comes twice in its section; correct it there"),
    (b"variants:\n  a: {}\n  a: {set: {SOLVER.SEED: 3}}", "at line 3: a comes twice"), (b"- a", "holds no KEY: value pairs"),
    (b"variants: &own {a: *own}", "section that contains itself"), (b"seeds: 2026-13-45", "a value that YAML cannot read"),
    (b"a: &a [" + b"1," * 200 + b"]\nb: [" + b"*a," * 200 + b"]", "over 10000 values (YAML aliases)"),
    (b"#" * (1 << 21), "is larger than"), (b"title: !!python/name:os.system", "is not valid YAML")],
    ids=lambda value: repr(value)[:40])
def test_a_study_is_read_like_a_configuration(tmp_path, content, said):
    path = tmp_path / "study.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        tool.read_study(path)
    assert str(raised.value).startswith(f"The study {path} ") and said in str(raised.value)
