"""A study's YAML file goes through the same checks as a configuration."""
import pytest

from demo_sdtps.config import UserError
from demo_sdtps.tools import study as tool


@pytest.mark.parametrize(("content", "said"), [
    (None, "cannot be read (No such file or directory); give a YAML file such as studies/modules.yml"),
    (b"title: L\xe4ufe", "cannot be read ("), (b"title: [", "is not valid YAML"), (b"- a", "holds no KEY: value pairs")],
    ids=lambda value: repr(value)[:40])
def test_a_study_is_read_like_a_configuration(tmp_path, content, said):
    path = tmp_path / "study.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        tool.read_study(path)
    assert str(raised.value).startswith(f"The study {path} ") and said in str(raised.value)
