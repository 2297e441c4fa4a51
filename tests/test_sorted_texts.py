"""Texts are found as Python finds them in a list, at a cost that hardly grows with the number that they are among."""

import time

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


def test_many_looks_at_many_texts_take_less_time_than_sorting_them_once():
    texts = pa.array([f"molecule-{i * 7919 % 300_000}" for i in range(300_000)])
    started = time.process_time()
    sorted_texts = SortedTexts.of([texts])
    sorting = time.process_time() - started
    started = time.process_time()
    for _ in range(20):
        assert (sorted_texts.positions(texts[:50]) >= 0).all()
    assert time.process_time() - started < sorting
