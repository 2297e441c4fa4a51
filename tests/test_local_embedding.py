import tracemalloc

import numpy as np
import pytest

from wegl_dask.local_embedding import joined


def batches(sizes, width):
    """Vectors and costs that are numbered through."""
    first = 0
    for size in sizes:
        numbers = np.arange(first, first + size)
        yield np.outer(numbers, np.ones(width)).astype(np.float32), numbers / 7, 0
        first += size


@pytest.mark.parametrize("sizes", [[], [1], [3, 1, 400, 1, 1, 2, 0, 90]])
def test_batches_are_put_one_after_another(sizes):
    vectors, costs = joined(batches(sizes, 5), 5)
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous
    np.testing.assert_array_equal(vectors, np.arange(sum(sizes))[:, None].repeat(5, axis=1))
    np.testing.assert_array_equal(costs, np.arange(sum(sizes)) / 7)


def test_vectors_are_not_held_twice():
    tracemalloc.start()
    vectors, _ = joined(batches([100] * 300, 64), 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 7.7 MB.
    assert vectors.nbytes == 4 * 30_000 * 64
    assert peak < 1.25 * vectors.nbytes
