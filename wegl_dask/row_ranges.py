"""Rows of the input by where they come from: for every source file, ranges of their numbers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RowRanges = dict[str, list[list[int]]]
"""For every source file the ranges ``[first, last + 1]`` of its rows, in ascending order."""

_ORIGIN = ["source_file", "source_row"]


def row_ranges(tables: Iterable[pa.Table]) -> RowRanges:
    """Sum up which rows of the input tables with ``source_file`` and ``source_row`` are of.

    Examples
    --------
    >>> row_ranges([pa.table({"source_file": ["a", "a", "a"], "source_row": [4, 3, 9]})])
    {'a': [[3, 5], [9, 10]]}
    """
    rows = pa.concat_tables([table.select(_ORIGIN) for table in tables])
    if not rows.num_rows:
        return {}
    names = rows.column("source_file").combine_chunks().dictionary_encode()
    numbers, codes = rows.column("source_row").to_numpy(), names.indices.to_numpy()
    order = np.lexsort((numbers, codes))
    numbers, codes = numbers[order], codes[order]
    starts = np.flatnonzero((np.diff(codes, prepend=-1) != 0) | (np.diff(numbers, prepend=-1) != 1))
    stops = np.append(starts[1:], len(numbers))
    result: RowRanges = {}
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        name = names.dictionary[int(codes[start])].as_py()
        result.setdefault(name, []).append([int(numbers[start]), int(numbers[stop - 1]) + 1])
    return result


def first_repeated(parts: Iterable[RowRanges]) -> tuple[str, int] | None:
    """Find a row that several parts have, or one part several times: its source file and its number.

    Examples
    --------
    >>> first_repeated([{"a": [[0, 3]], "b": [[7, 9]]}, {"a": [[3, 4]], "b": [[8, 9]]}])
    ('b', 8)
    """
    of_file: dict[str, list[list[int]]] = {}
    for part in parts:
        for name, ranges in part.items():
            of_file.setdefault(name, []).extend(ranges)
    for name, ranges in of_file.items():
        # Not by NumPy, which takes longer for the few ranges of each of many files.
        ranges.sort()
        for (_, stop, *_), (start, *_) in pairwise(ranges):
            if start < stop:
                return name, start
    return None


def rows_among(rows: pa.Table, ranges: Mapping[str, Sequence[Sequence[int]]]) -> npt.NDArray[np.bool_]:
    """Mark the rows of a table that are in some of the ranges, of which what follows two numbers does not matter.

    Examples
    --------
    >>> rows_among(pa.table({"source_file": ["a", "a", "b"], "source_row": [3, 5, 3]}), {"a": [[3, 5]]}).tolist()
    [True, False, False]
    """
    result = np.zeros(rows.num_rows, dtype=np.bool_)
    if not rows.num_rows:
        return result
    names = rows.column("source_file").combine_chunks().dictionary_encode()
    numbers, codes = rows.column("source_row").to_numpy(), names.indices.to_numpy()
    for code, name in enumerate(names.dictionary.to_pylist()):
        if name in ranges:
            ends = np.array([each[:2] for each in ranges[name]], dtype=np.int64)
            here = np.flatnonzero(codes == code)
            before = np.searchsorted(ends[:, 0], numbers[here], side="right") - 1
            result[here] = (before >= 0) & (numbers[here] < ends[before, 1])
    return result
