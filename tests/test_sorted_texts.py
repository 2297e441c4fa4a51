"""Texts are found as Python finds them in a list."""

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from wegl_dask.sorted_texts import SortedTexts

# Of which UTF-16 and UTF-8 sort the last two differently.
TEXTS = st.lists(st.text(alphabet="ab\0 Zé\uffff\U00010000", max_size=3))


@given(TEXTS, TEXTS)
@example(["a"], [])
@example([], ["a"])
@example(["b", "a", "b"], ["b", "", "c"])
def test_texts_are_found_where_they_are_in_ascending_order(texts, wanted):
    ordered = sorted(texts)
    found = SortedTexts.of([pa.array(texts[:2], pa.string()), pa.array(texts[2:], pa.string())])
    assert found.texts.to_pylist() == ordered
    expected = [ordered.index(text) if text in texts else -1 for text in wanted]
    assert found.positions(pa.array(wanted, pa.string())).tolist() == expected
    chunks = pa.chunked_array([wanted[:1], wanted[1:]], pa.string())
    assert found.positions(chunks).tolist() == expected
