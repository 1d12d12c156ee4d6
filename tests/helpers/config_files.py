"""Configuration files that tests write, and the sentences that loading them raises."""

import pytest

from demo_sdtps.config import UserError, load_cfg


def write(folder, text):
    path = folder / "some" / "run.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def error(*arguments):
    """The sentence that loading raises; every one of them is a single line."""
    with pytest.raises(UserError) as raised:
        load_cfg(*arguments)
    message = str(raised.value)
    assert "\n" not in message
    return message
