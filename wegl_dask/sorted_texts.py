"""Texts that others are looked up among again and again, of which there may be as many as there are graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wegl_dask.graphs import IntArray


@dataclass(frozen=True)
class SortedTexts:
    """Texts in ascending order, in which a text is found by halving: in some steps, and without a table of all of them.

    Attributes
    ----------
    texts : pyarrow.LargeStringArray
        One that was given twice is there twice.

    Notes
    -----
    Arrow's `is_in` and `index_in` make a hash table of what they look among at every call, half a microsecond a text: as
    slow for a shard as for all of them together. A set of Python's takes a hundred bytes a text.

    Examples
    --------
    >>> known = SortedTexts.of([pa.array(["b", "a"]), pa.array(["d"])])
    >>> known.positions(pa.array(["d", "c", "a"])).tolist()
    [2, -1, 0]
    """

    texts: pa.LargeStringArray

    @classmethod
    def of(cls, chunks: Sequence[pa.Array]) -> "SortedTexts":
        """Sort texts; none is null."""
        # An array of pa.string() ends at 2 GB.
        texts = pa.chunked_array(chunks, pa.string()).cast(pa.large_string()).combine_chunks()
        return cls(texts.take(pc.sort_indices(texts)))

    def positions(self, wanted: pa.Array | pa.ChunkedArray) -> IntArray:
        """Find texts: the position of the first that is equal to each, -1 where there is none."""
        wanted, n_texts = wanted.cast(pa.large_string()), len(self.texts)
        if isinstance(wanted, pa.ChunkedArray):
            wanted = wanted.combine_chunks()
        if not n_texts:
            return np.full(len(wanted), -1, dtype=np.int64)
        n_before = np.zeros(len(wanted), dtype=np.int64)
        for bit in reversed(range(n_texts.bit_length())):
            more = n_before + (1 << bit)
            last_is_before = pc.less(self._at(more - 1), wanted).to_numpy(zero_copy_only=False)
            n_before = np.where((more <= n_texts) & last_is_before, more, n_before)
        is_there = pc.equal(self._at(n_before), wanted).to_numpy(zero_copy_only=False)
        return np.where((n_before < n_texts) & is_there, n_before, -1)

    def _at(self, positions: IntArray) -> pa.LargeStringArray:
        """Take the texts at some positions; beyond the end, the last one."""
        return self.texts.take(pa.array(np.minimum(positions, len(self.texts) - 1)))
