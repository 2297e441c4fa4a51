"""Standardisation and principal components of the node embeddings, from moments that can be merged.

Notes
-----
Everything up to the principal components is linear in the raw node features, so the moments are taken before the
encoder is applied wherever that is the narrower space: with the raw embedding y of a node, pooled but not encoded, and
the encoder B, the mean of yB is mean(y) B and its covariance B' cov(y) B. No wide feature matrix is ever formed.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.errors import SettingsError
from wegl_dask.graphs import IntArray

FloatMatrix = npt.NDArray[np.float64]

RANK_TOLERANCE = 1e-10
"""Principal components with less than this part of the largest variance are noise of the arithmetic."""

CORE_ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Rounding error of a matrix whose eigenvalues are found, a row, as a part of the largest of them."""

DENSE_WIDTH = 1024
"""Columns up to which all principal components are found, whether they are wanted or not."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and squared deviations of a set of vectors, in float64.

    Attributes
    ----------
    count : int
        Number of vectors.
    mean : float64, (width,)
    deviations : float64, (width,) or (width, width)
        Sum over the vectors of their squared deviations from the mean, or of the products of all pairs (scatter).
    """

    count: int
    mean: FloatMatrix
    deviations: FloatMatrix

    @classmethod
    def of(cls, vectors: FloatMatrix, *, scatter: bool) -> "Moments":
        """Take the moments of the rows of `vectors`, (n, width) with n >= 1."""
        mean = vectors.mean(axis=0)
        centred = vectors - mean
        deviations = centred.T @ centred if scatter else np.einsum("ij,ij->j", centred, centred)
        return cls(len(vectors), mean, deviations)

    @classmethod
    def none(cls, width: int, *, scatter: bool) -> "Moments":
        """Moments of no vector at all, the neutral element of `merge`."""
        return cls(0, np.zeros(width), np.zeros((width, width) if scatter else width))

    @property
    def has_scatter(self) -> bool:
        """Whether all pairs of columns were taken."""
        return self.deviations.ndim == 2

    @property
    def variance(self) -> FloatMatrix:
        """Population variance of every column (ddof 0): float64, (width,)."""
        diagonal = np.diagonal(self.deviations) if self.has_scatter else self.deviations
        return diagonal / self.count

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, other: "Moments") -> "Moments":
        """Moments of both sets together (Chan, Golub and LeVeque 1979)."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        delta = other.mean - self.mean
        weight = self.count * other.count / count
        between = np.outer(delta, delta) if self.has_scatter else delta**2
        return Moments(
            count,
            self.mean + delta * (other.count / count),
            self.deviations + other.deviations + weight * between,
        )


@dataclass(frozen=True)
class Projection:
    """The affine map from pooled node embeddings to the points that are transported.

    A point is ``((z - mean) / scale) @ components.T``, without the last factor where `components` is None.

    Attributes
    ----------
    mean, scale : float64, (columns,)
    components : float64, (dimension, columns) or None
        Orthonormal rows, by decreasing variance, each with its largest entry positive.
    variances : float64, (dimension,)
        Variance of the points along every axis, over the nodes of the fit (ddof 0).
    total_variance : float
        Sum of the variances of all columns after scaling.
    """

    mean: FloatMatrix
    scale: FloatMatrix
    components: FloatMatrix | None
    variances: FloatMatrix
    total_variance: float

    @property
    def dimension(self) -> int:
        """Number d of coordinates of a point."""
        return len(self.mean) if self.components is None else len(self.components)

    @property
    def rounding_step(self) -> float:
        """Grid that points are rounded to: a power of two about 2**-28 of their root mean square coordinate."""
        spread = float(np.sqrt(self.variances.mean()))
        return float(2.0 ** (np.floor(np.log2(spread if spread > 0 else 1.0)) - 28))


def n_directions(width: int, components: int) -> int:
    """Say how many random directions the principal components of `width` columns are found from."""
    return min(width, 3 * components + 20)


def random_directions(width: int, components: int, seed: int) -> FloatMatrix:
    """Draw the directions that the covariance of `width` columns is multiplied with: float64, (width, p).

    Examples
    --------
    >>> random_directions(1000, 20, seed=0).shape
    (1000, 80)
    """
    number = n_directions(width, components)
    return np.random.default_rng([seed, width, number]).standard_normal((width, number))


def column_factors(moments: Moments, *, standardize: bool) -> FloatMatrix:
    """Say what the columns of the moments are multiplied with before the PCA, (width,); 0 for those without variance.

    SettingsError where a variance is not finite.
    """
    constant, scale = _scaling(moments.variance, moments.mean, moments.count, standardize=standardize)
    return np.where(constant, 0.0, 1.0 / scale)


def fit_projection(
    moments: Moments,
    *,
    encoder: FloatMatrix | None,
    columns: IntArray | None,
    n_columns: int,
    repeats: int,
    standardize: bool,
    components: int | None,
    fewer: bool = False,
    sketch: tuple[FloatMatrix, FloatMatrix] | None = None,
) -> Projection:
    """Fit standardisation and PCA.

    Parameters
    ----------
    moments : Moments
        Of the pooled features of all nodes of the fit: `repeats` blocks of columns, one a layer for "concat".
    encoder : float64, (moments' width / repeats, F) or None
        What the moments' columns are still to be encoded with; None if they are the features themselves.
    columns : int (moments' width / repeats,) or None
        Where `encoder` is None: which of the `n_columns` feature columns the moments cover; the others are 0
        throughout. None is all of them.
    n_columns : int
        Number F of feature columns.
    repeats : int
        L + 1 for "concat", else 1.
    standardize : bool
        Divide by the population standard deviation (ddof 0) as `sklearn.preprocessing.StandardScaler` does: columns
        without variance are divided by 1. If False, only the mean is subtracted, and only when there is a PCA.
    components : int or None
        Number of principal components; needs moments with a scatter.
    fewer : bool, default False
        Take fewer components, all there are, where there are fewer directions with variance than `components`.
    sketch : (float64 (width, p), float64 (width, p)), optional
        Random directions, and their products with the scatter of the scaled columns, in place of a scatter matrix; see
        `wegl_dask.points.NodeEmbedding.sketch`. Without an encoder.

    Raises
    ------
    SettingsError
        If more components are asked for than there are directions with variance, or there are none, or if a
        variance is not finite.
    """
    wide = repeats * n_columns
    mapping: FloatMatrix | None = None
    mean = np.zeros(wide)
    variance = np.zeros(wide)
    if encoder is None:
        covered = np.arange(n_columns) if columns is None else columns
        covered = (np.arange(repeats)[:, None] * n_columns + covered).ravel()
        mean[covered] = moments.mean
        variance[covered] = moments.variance
    else:
        covered = np.arange(wide)
        mapping = np.asarray(np.kron(np.eye(repeats), encoder), dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = moments.mean @ mapping
            variance = np.einsum("ij,ij->j", mapping, moments.deviations @ mapping) / moments.count
    constant, scale = _scaling(variance, mean, moments.count, standardize=standardize)
    variance[constant] = 0.0
    if components is None:
        if not standardize:
            mean = np.zeros(wide)
        scaled = variance / scale**2
        return Projection(mean, scale, None, scaled, float(scaled.sum()))

    factors = np.where(constant, 0.0, 1.0 / scale)[covered]
    if sketch is None:
        axes, spectrum, total = _principal_axes(moments, mapping, factors, components)
    else:
        directions, products = sketch
        axes, spectrum = _sketched_axes(directions, products / moments.count)
        total = float((variance[covered] * factors**2).sum())
    rank = int((spectrum > spectrum[0] * RANK_TOLERANCE).sum()) if spectrum.size and spectrum[0] > 0 < total else 0
    if not rank:
        raise SettingsError(
            "the node embeddings do not vary, so that there are no principal components: choose nodes.features that tell "
            "nodes apart, or leave out projection.components"
        )
    if fewer:
        components = min(components, rank)
    if components > rank:
        raise SettingsError(
            f"projection.components = {components}, and the node embeddings vary in {rank} directions only; "
            f"set projection.components to {rank} at most"
        )
    matrix = np.zeros((components, wide))
    matrix[:, covered] = axes[:components]
    largest = np.abs(matrix).argmax(axis=1)
    matrix *= np.sign(matrix[np.arange(components), largest])[:, None]
    return Projection(mean, scale, matrix, spectrum[:components], total)


def _scaling(
    variance: FloatMatrix, mean: FloatMatrix, count: int, *, standardize: bool
) -> tuple[npt.NDArray[np.bool_], FloatMatrix]:
    """Mark the constant columns, and say what all are divided by.

    The rule is scikit-learn's: a variance within rounding error of 0. SettingsError where a variance is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(mean.sum() + variance.sum()):
            raise SettingsError(
                "the node embeddings are so large that their variances are not finite in double precision; every layer can "
                "make them as many times larger as an edge has channels: lower diffusion.layers, or set edges.features to "
                '"none"'
            )
    epsilon = np.finfo(np.float64).eps
    constant = np.asarray(variance <= count * epsilon * variance + (count * mean * epsilon) ** 2)
    return constant, np.sqrt(np.where(constant, 1.0, variance)) if standardize else np.ones(len(variance))


def _principal_axes(
    moments: Moments, mapping: FloatMatrix | None, factors: FloatMatrix, n_wanted: int
) -> tuple[FloatMatrix, FloatMatrix, float]:
    """Axes (n, covered columns) and their variances, largest first, and the sum of all variances.

    They are found in the narrower of the two spaces, `n_wanted` of them or more. The covered columns count `factors`
    times; 0 keeps the rounding errors of a constant column out.
    """
    if mapping is None or mapping.shape[0] >= mapping.shape[1]:
        scaled = moments.deviations / moments.count
        if mapping is not None:
            scaled = mapping.T @ scaled @ mapping
        scaled *= factors
        scaled *= factors[:, None]
        total = float(np.trace(scaled))
        values, vectors = _largest_eigenpairs(scaled, n_wanted)
        return vectors.T, values, total
    # The later layers of "concat" can be a billion times as large as the first, which would be lost beside them.
    spread = np.sqrt(np.where(moments.variance > 0, moments.variance, 1.0))
    values, vectors = np.linalg.eigh(moments.deviations / moments.count / spread / spread[:, None])
    factor = (np.sqrt(np.maximum(values, 0.0)) * vectors).T @ (mapping * factors * spread[:, None])
    _, singular, axes = np.linalg.svd(factor, full_matrices=False)
    return axes, singular**2, float((singular**2).sum())


def _sketched_axes(directions: FloatMatrix, products: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """Approximate the axes (k <= p, width) of a covariance C and their variances from ``products`` = C times `directions`.

    Nystrom's method (Tropp, Yurtsever, Udell and Cevher 2017, algorithm 3), with eigenvectors of the core in place of a
    Cholesky factor: where C has fewer directions than `directions`, rounding makes some of its eigenvalues negative.
    """
    orthonormal, triangle = np.linalg.qr(directions)
    image = scipy.linalg.solve_triangular(triangle, products.T, trans="T").T
    core = orthonormal.T @ image
    values, vectors = np.linalg.eigh((core + core.T) / 2)
    # What the root of a smaller one divides is rounding error, which it would make a direction of.
    kept = values > values[-1] * len(values) * CORE_ROUNDING
    axes, singular, _ = np.linalg.svd(image @ (vectors[:, kept] / np.sqrt(values[kept])), full_matrices=False)
    return axes.T, singular**2


def _largest_eigenpairs(matrix: FloatMatrix, n_wanted: int) -> tuple[FloatMatrix, FloatMatrix]:
    """Eigenvalues, largest first, and eigenvectors (n, k) of a symmetric matrix, which may be overwritten."""
    n = len(matrix)
    if n <= DENSE_WIDTH or n_wanted >= n:
        values, vectors = np.linalg.eigh(matrix)
    else:
        # All eigenvectors of a wide matrix would take twice the time, and seven times its memory.
        wanted = (n - n_wanted, n - 1)
        values, vectors = scipy.linalg.eigh(
            matrix, subset_by_index=wanted, overwrite_a=True, check_finite=False, driver="evr"
        )
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]
