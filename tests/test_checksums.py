import json

import pytest

from wegl_dask.checksums import sealed, unsealed

VALUES = {"b": [1, 2.5, None], "a": {"name": "Übung"}}


def test_what_was_sealed_comes_back_whatever_the_form_of_the_text():
    for options in ({}, {"indent": 2}, {"sort_keys": True}, {"ensure_ascii": False}):
        assert unsealed(json.dumps(sealed(VALUES), **options).encode()) == VALUES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(VALUES).encode(), "it was altered"),
        (json.dumps({**sealed(VALUES), "b": [1, 2.5, 0]}).encode(), "it was altered"),
        (json.dumps({**sealed(VALUES), "c": 1}).encode(), "it was altered"),
        (json.dumps({**sealed(VALUES), "checksum": None}).encode(), "it was altered"),
        (json.dumps({**sealed(VALUES), "c": float("nan")}).encode(), "not JSON compliant"),
        (b"[1]", "it is a list, not an object"),
        (b"{", "Expecting property name"),
        (b"\xff", "can't decode byte"),
        (b"[" * 100_000, "nested too deeply"),
        *((b'{"a":' * depth + b"1" + b"}" * depth, "nested too deeply|was altered") for depth in range(900, 1000, 5)),
    ],
)
def test_anything_else_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        unsealed(content)


def test_a_checksum_that_is_there_is_not_replaced():
    with pytest.raises(ValueError, match='the key "checksum"'):
        sealed({"checksum": "x"})
