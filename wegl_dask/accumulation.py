"""Moments of many vectors, taken block by block into one scatter matrix that is in memory once."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.graphs import IntArray
from wegl_dask.projection import Moments

FloatMatrix = npt.NDArray[np.float64]

_MIRRORED_ROWS = 512


class MomentAccumulator:
    """Count, mean and squared deviations of the vectors added so far.

    The same as `wegl_dask.projection.Moments.merge`, without a matrix for every intermediate result: a scatter matrix of
    4,096 columns takes 134 MB.

    Parameters
    ----------
    width : int
        Entries of a vector.
    scatter : bool
        Take the products of all pairs of columns too.
    """

    def __init__(self, width: int, *, scatter: bool) -> None:
        self._count = 0
        self._mean = np.zeros(width)
        # Of a scatter matrix, the upper triangle is filled in at the end.
        self._deviations = np.zeros((width, width) if scatter else width)

    def consume(self, vectors: FloatMatrix, columns: IntArray | None = None) -> None:
        """Add vectors, which are overwritten.

        Parameters
        ----------
        vectors : float64, (n, n_columns), in C order
            Their entries in the named columns; all others are 0.
        columns : int, (n_columns,), optional
            In ascending order; all of them by default.
        """
        if not len(vectors):
            return
        width = len(self._mean)
        columns = np.arange(width) if columns is None else columns
        mean = np.zeros(width)
        mean[columns] = vectors.mean(axis=0)
        vectors -= mean[columns]
        if self._deviations.ndim == 1:
            self._deviations[columns] += np.einsum("ij,ij->j", vectors, vectors)
        elif len(columns) == width:
            self._symmetric_update(vectors)
        elif len(columns):
            # As in the whole matrix, the other triangle is left at 0.
            self._deviations[np.ix_(columns, columns)] += scipy.linalg.blas.dsyrk(1.0, vectors.T).T
        self._shift(len(vectors), mean)

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, moments: Moments) -> None:
        """Add the vectors that `moments` were taken of."""
        if moments.count:
            self._deviations += moments.deviations
            self._shift(moments.count, moments.mean)

    def add_products(
        self, count: int, mean: FloatMatrix, products: Iterable[tuple[IntArray, IntArray, FloatMatrix]]
    ) -> None:
        """Add `count` vectors by their mean and the products of their centred columns, some columns at a time.

        Parameters
        ----------
        count : int
        mean : float64, (width,)
        products : iterable of (rows, columns, values)
            Sums of products of the columns `rows` with the columns `columns`, (len(rows), len(columns)); every pair of
            columns is to come once, in either order, that of a column with itself among the products of `rows` with
            themselves.
        """
        for rows, columns, values in products:
            self._deviations[np.ix_(rows, columns)] += values
            if not np.array_equal(rows, columns):
                self._deviations[np.ix_(columns, rows)] += values.T
        self._shift(count, mean)

    def moments(self) -> Moments:
        """Hand the moments over; the accumulator is not to be used any more."""
        if self._deviations.ndim == 2:
            _mirror(self._deviations)
        return Moments(self._count, self._mean, self._deviations)

    def _symmetric_update(self, centred: FloatMatrix) -> None:
        # The arrays are handed over transposed, since BLAS counts by columns; so nothing is copied.
        upper = self._deviations.T
        result = scipy.linalg.blas.dsyrk(1.0, centred.T, beta=1.0, c=upper, overwrite_c=True)
        if not np.may_share_memory(result, upper):
            raise RuntimeError("BLAS has returned a copy instead of working in place: the products would be lost")

    def _shift(self, count: int, mean: FloatMatrix) -> None:
        """Account for the distance of the new vectors' mean from the old one (Chan, Golub and LeVeque 1979)."""
        total = self._count + count
        delta = mean - self._mean
        weight = self._count * count / total
        if weight and self._deviations.ndim == 2:
            scipy.linalg.blas.dsyr(weight, delta, a=self._deviations.T, overwrite_a=True)
        elif weight:
            self._deviations += weight * delta**2
        self._mean = self._mean + delta * (count / total)
        self._count = total


def _mirror(matrix: FloatMatrix) -> None:
    """Fill in the upper triangle of a symmetric matrix from the lower one, in place."""
    for start in range(0, len(matrix), _MIRRORED_ROWS):
        stop = min(start + _MIRRORED_ROWS, len(matrix))
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T
        square = matrix[start:stop, start:stop]
        square[:] = np.tril(square) + np.tril(square, -1).T
