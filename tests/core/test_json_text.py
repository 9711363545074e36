"""JSON text is what the ``json`` package makes and reads, without its import."""

from __future__ import annotations

import json

import pytest

from relay.core import json_text

VALUES = [None, True, 1.5, "é\ud800\u2028", {"a": [1, {2: None}], "b": ()}, float("inf")]
TEXTS = ['{"a": 1, "a": 2}', ' "\\ud83d\\ude00" ', "[-0, 1e999]", '"\\ud800"']
BROKEN = ["", "nul", '{"a":1', "[1,]", '"\t"', "1 2", "01", "\ufeff1", "[" * 100_000]


@pytest.mark.parametrize("ascii", [True, False])
def test_values_are_written_as_by_json(ascii: bool) -> None:
    for value in VALUES:
        written = json.dumps(value, ensure_ascii=ascii, separators=(",", ":"))
        assert json_text.dumps(value, ascii=ascii) == written
    with pytest.raises(TypeError):
        json_text.dumps(object(), ascii=ascii)


def test_texts_are_read_as_by_json() -> None:
    for text in TEXTS:
        assert json_text.loads(text) == json.loads(text)


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:5]))
def test_what_is_no_json_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        json_text.loads(text)
