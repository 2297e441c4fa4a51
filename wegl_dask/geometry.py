"""The geometry of the embeddings: back to points, means, geodesics, and what is certain about Wasserstein distances.

Notes
-----
With the reference Z_0 of N points, F = Z_0 + sqrt(N) phi are the points that an embedding stands for (paper, section
"Numerical Details" and appendix "Detailed Discussion on Linear Wasserstein Embedding"). Row j of F is the mean of where
the plan pi sends the reference's point j, so that

    r^2 = <pi, C> - |phi|^2,        <pi, C> the transport cost,

is the mean squared distance of the graph's mass from F: what barycentric projection loses. Two plans share the reference
and can be glued along it. Glued independently, they couple the points of graphs i and j at the cost of the middle term

    W_2(i, j)^2 <= |phi_i - phi_j|^2 + r_i^2 + r_j^2 <= (|phi_i - phi_j| + r_i + r_j)^2,

which is at most (sqrt(cost_i) + sqrt(cost_j))^2. Glued as well as can be, they give the generalised geodesic distance:
it lies between W_2 and that bound, and it is no less than |phi_i - phi_j|. All of this holds for every plan with the
right marginals, optimal or not; `|phi_i - phi_j|` itself may fall on either side of W_2.
"""

import numpy as np
import numpy.typing as npt

from wegl_dask.canonical import squared_distances
from wegl_dask.transport import MARGINAL_TOLERANCE, PlanError, exact_plan

FloatArray = npt.NDArray[np.floating]
FloatMatrix = npt.NDArray[np.float64]

_MEAN_ROWS = 4096
"""Embeddings that are widened to double precision at a time."""

SUM_ERROR = 64 * np.finfo(np.float64).eps
"""Relative error allowed for sums of squares that were added up in float64."""


def inverse(phi: FloatArray, reference: FloatMatrix) -> FloatMatrix:
    """Turn embeddings back into the points they stand for: F = Z_0 + sqrt(N) phi.

    Parameters
    ----------
    phi : float, (..., N * d)
    reference : float64, (N, d)

    Returns
    -------
    float64, (..., N, d)
        Points of weight 1 / N each: those of the graph where the plan splits no mass of the reference, and otherwise
        the barycentric projection of its plan.

    Raises
    ------
    ValueError
        If they have not N * d entries, or the reference is no matrix.

    Examples
    --------
    >>> reference = np.array([[0.0], [3.0]])
    >>> phi = (np.array([[1.0], [5.0]]) - reference).ravel() / np.sqrt(2)
    >>> inverse(phi, reference).round(6).ravel()
    array([1., 5.])
    """
    if reference.ndim != 2:
        raise ValueError(f"the reference has shape {reference.shape}; (N, d) is needed, as read_embeddings gives it")
    n_points, dimension = reference.shape
    if phi.shape[-1:] != (n_points * dimension,):
        raise ValueError(
            f"embeddings have {phi.shape[-1] if phi.ndim else 'no'} entries; {n_points} reference points of {dimension} coordinates need "
            f"{n_points * dimension}"
        )
    displacements = phi.astype(np.float64).reshape(*phi.shape[:-1], n_points, dimension)
    points: FloatMatrix = reference + np.sqrt(n_points) * displacements
    return points


def mean(phi: FloatArray, reference: FloatMatrix, weights: FloatArray | None = None) -> FloatMatrix:
    """Compute the mean of several graphs in the embedding, as points (paper, figure 5b).

    Parameters
    ----------
    phi : float, (n_graphs, N * d)
    reference : float64, (N, d)
    weights : float, (n_graphs,), optional
        Non-negative; all alike if not given.

    Returns
    -------
    float64, (N, d)
        Points of weight 1 / N: the Wasserstein barycenter of the graphs where the embedding is an isometry, such as for
        shifted and scaled copies of the reference.

    Raises
    ------
    ValueError
        If there are no graphs, or the embeddings have not N * d entries each, or the weights are not one a graph, negative,
        or all 0.

    Examples
    --------
    >>> reference = np.array([[0.0], [1.0]])
    >>> phi = np.array([[0.0, 0.0], [2.0, 2.0]]) / np.sqrt(2)  # the reference itself, and the reference moved by 2
    >>> mean(phi, reference).round(6).ravel()
    array([1., 2.])
    """
    if phi.ndim != 2:
        raise ValueError(f"the embeddings have shape {phi.shape}; (n_graphs, N * d) is needed, a row a graph")
    if not len(phi):
        raise ValueError("there are no graphs to take the mean of")
    if weights is None:
        return inverse(phi.mean(axis=0, dtype=np.float64), reference)
    if weights.shape != phi.shape[:1]:
        raise ValueError(f"there are {len(phi)} graphs, and the weights have the shape {weights.shape}")
    # In half precision the sum of many weights, or of large ones, would be infinite.
    given = weights.astype(np.float64)
    if not ((given >= 0).all() and 0 < given.sum() < np.inf):
        raise ValueError("weights of a mean have to be 0 or more, finite, and not all 0")
    shares = given / given.sum()
    total = np.zeros(phi.shape[1])
    for start in range(0, len(phi), _MEAN_ROWS):
        total += shares[start : start + _MEAN_ROWS] @ phi[start : start + _MEAN_ROWS].astype(np.float64)
    return inverse(total, reference)


def geodesic(start: FloatArray, end: FloatArray, t: float | FloatArray, reference: FloatMatrix) -> FloatMatrix:
    """Follow the straight line between two embeddings, as points (paper, figures 5c and 5d).

    Parameters
    ----------
    start, end : float, (N * d,) or (n, N * d)
        Embeddings, or n of them, each with its own way; zeros stand for the reference.
    t : float or float, (...)
        0 is at `start` and 1 at `end`.
    reference : float64, (N, d)

    Returns
    -------
    float64, (..., N, d) or (..., n, N, d)
        Points of weight 1 / N for every t.

    Raises
    ------
    ValueError
        If the embeddings are not both of N * d entries.

    Examples
    --------
    >>> reference = np.array([[0.0], [1.0]])
    >>> moved = np.array([2.0, 2.0]) / np.sqrt(2)
    >>> geodesic(np.zeros(2), moved, np.array([0.0, 0.5, 1.0]), reference)[:, :, 0].round(6)
    array([[0., 1.],
           [1., 2.],
           [2., 3.]])
    """
    _require_one_width(start, end)
    parts = np.asarray(t, dtype=np.float64)
    # As many ways as there are: each t is of all of them.
    part = parts.reshape(parts.shape + (1,) * max(start.ndim, end.ndim))
    return inverse((1 - part) * start + part * end, reference)


def log_map(base: FloatMatrix, points: FloatMatrix, weights: FloatArray | None = None) -> FloatMatrix:
    """Compute the tangent vector at one distribution that points to another: v = f - id on the points of `base`.

    Parameters
    ----------
    base : float64, (n, d)
        Points of weight 1 / n.
    points : float64, (m, d)
    weights : float, (m,), optional
        They add up to 1, in the precision that they have; 1 / m each if not given.

    Returns
    -------
    float64, (n, d)
        The displacement of every point of `base` under the barycentric projection of the optimal plan. At the
        reference it is sqrt(N) phi.

    Raises
    ------
    PlanError
        If there are no points, or they are not finite.
    ValueError
        If there is not one weight of 0 or more for each point, or they do not add up to 1.

    Examples
    --------
    >>> log_map(np.array([[0.0], [1.0]]), np.array([[5.0], [2.0]])).ravel()
    array([2., 4.])
    """
    uniform, given = _weights(None, base), _weights(weights, points)
    plan = exact_plan(uniform, given, squared_distances(base, points))[0]
    field: FloatMatrix = len(base) * (plan @ points) - base
    return field


def exp_map(base: FloatMatrix, field: FloatMatrix) -> FloatMatrix:
    """Push the points of `base` along a tangent vector: (id + v), the inverse of `log_map` where no mass is split.

    Parameters
    ----------
    base, field : float64, (n, d)

    Returns
    -------
    float64, (n, d)

    Raises
    ------
    ValueError
        If there is not one vector for each point.

    Examples
    --------
    >>> exp_map(np.array([[0.0], [1.0]]), np.array([[2.0], [4.0]])).ravel()
    array([2., 5.])
    """
    if base.shape != field.shape:
        raise ValueError(f"the field has shape {field.shape}; one vector for each of the points {base.shape} is needed")
    pushed: FloatMatrix = base + field
    return pushed


def residual(phi: FloatArray, transport_cost: FloatMatrix) -> FloatMatrix:
    """Compute how far a graph's mass is from the points its embedding stands for: r = sqrt(cost - |phi|^2).

    Parameters
    ----------
    phi : float, (..., N * d)
        As it is stored: what its type has rounded away is allowed for, so that r is not too small.
    transport_cost : float64, (...)

    Returns
    -------
    float64, (...)
        Root mean square distance; 0 but for rounding where the plan splits no mass of the reference.

    Examples
    --------
    >>> residual(np.array([[3.0, 4.0]]), np.array([34.0])).round(6)
    array([3.])
    """
    return residual_and_error(phi, transport_cost)[0]


def residual_and_error(phi: FloatArray, transport_cost: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """Compute `residual`, and bound what rounding has done, in one pass over the embeddings; parameters as of `residual`.

    Returns
    -------
    residual : float64, (...)
    error : float64, (...)
        How far embeddings may be, in norm, from what they were before they were rounded to the type of `phi`.

    Examples
    --------
    >>> r, error = residual_and_error(np.array([[3.0, 4.0]]), np.array([34.0]))
    >>> r.round(6), bool(error[0] < 1e-14)
    (array([3.]), True)
    >>> _, error = residual_and_error(np.ones((1, 4), dtype=np.float16), np.array([4.0]))
    >>> (error / 2**-10).round(2)  # half of what two neighbours near 1 differ by, four times
    array([1.])
    """
    length = _norm(phi)
    error = _stored_error(length, phi)
    squared = transport_cost * (1 + SUM_ERROR) - np.maximum(length - error, 0.0) ** 2 * (1 - SUM_ERROR)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)), dtype=np.float64), error


def wasserstein_bound(phi_i: FloatArray, phi_j: FloatArray, cost_i: FloatMatrix, cost_j: FloatMatrix) -> FloatMatrix:
    """Bound W_2(i, j) from above by two rows of embeddings: sqrt(|phi_i - phi_j|^2 + r_i^2 + r_j^2).

    Parameters
    ----------
    phi_i, phi_j : float, (..., N * d)
        As they are stored, of the same type; see `residual`.
    cost_i, cost_j : float64, (...)
        Transport costs.

    Returns
    -------
    float64, (...)
        No less than W_2; at most |phi_i - phi_j| + r_i + r_j, but for rounding.

    Raises
    ------
    ValueError
        If the embeddings are not of one width.

    Examples
    --------
    >>> wasserstein_bound(np.array([3.0]), np.array([0.0]), np.array(9.0 + 8.0), np.array(8.0)).round(6)
    np.float64(5.0)
    """
    residual_i, error_i = residual_and_error(phi_i, cost_i)
    residual_j, error_j = residual_and_error(phi_j, cost_j)
    return bound_from_residuals(embedding_distance(phi_i, phi_j) + error_i + error_j, residual_i, residual_j)


def bound_from_residuals(distance: FloatMatrix, residual_i: FloatMatrix, residual_j: FloatMatrix) -> FloatMatrix:
    """Bound W_2(i, j) by what is known already: |phi_i - phi_j|, with the error of each, and `residual` of each.

    Parameters
    ----------
    distance, residual_i, residual_j : float64, (...)

    Returns
    -------
    float64, (...)

    Examples
    --------
    >>> float(bound_from_residuals(np.array(2.0), np.array(1.0), np.array(2.0)).round(6))
    3.0
    """
    squared = distance**2 + residual_i**2 + residual_j**2
    return np.asarray(np.sqrt(squared * (1 + SUM_ERROR)), dtype=np.float64)


def reference_bound(cost_i: FloatMatrix, cost_j: FloatMatrix) -> FloatMatrix:
    """Bound both W_2(i, j) and |phi_i - phi_j| by the way through the reference: sqrt(cost_i) + sqrt(cost_j).

    Parameters
    ----------
    cost_i, cost_j : float64, (...)
        Transport costs.

    Returns
    -------
    float64, (...)

    Examples
    --------
    >>> reference_bound(np.array([4.0]), np.array([9.0]))
    array([5.])
    """
    bound: FloatMatrix = np.sqrt(cost_i) + np.sqrt(cost_j)
    return bound


def embedding_distance(phi_i: FloatArray, phi_j: FloatArray) -> FloatMatrix:
    """Compute |phi_i - phi_j|.

    Parameters
    ----------
    phi_i, phi_j : float, (..., N * d)

    Returns
    -------
    float64, (...)

    Raises
    ------
    ValueError
        If the embeddings are not of one width.

    Examples
    --------
    >>> float(embedding_distance(np.array([3.0, 4.0]), np.array([0.0, 0.0])))
    5.0
    """
    _require_one_width(phi_i, phi_j)
    return _norm(phi_i.astype(np.float64) - phi_j.astype(np.float64))


def wasserstein_distance(
    points_i: FloatMatrix, weights_i: FloatArray, points_j: FloatMatrix, weights_j: FloatArray
) -> float:
    """Compute the 2-Wasserstein distance of two weighted point sets exactly.

    Parameters
    ----------
    points_i, points_j : float64, (n_i, d) and (n_j, d)
    weights_i, weights_j : float, (n_i,) and (n_j,)
        They add up to 1, in the precision that they have.

    Raises
    ------
    PlanError
        If there are no points, or they are not finite.
    ValueError
        If there is not one weight of 0 or more for each point, or they do not add up to 1.

    Examples
    --------
    >>> half = np.array([0.5, 0.5])
    >>> wasserstein_distance(np.array([[0.0], [1.0]]), half, np.array([[4.0], [3.0]]), half)
    3.0
    """
    costs = squared_distances(points_i, points_j)
    plan = exact_plan(_weights(weights_i, points_i), _weights(weights_j, points_j), costs)[0]
    return float(np.sqrt(np.vdot(plan, costs)))


def generalized_geodesic_distance(
    plan_i: FloatMatrix, points_i: FloatMatrix, plan_j: FloatMatrix, points_j: FloatMatrix
) -> float:
    """Compute the linearised transport distance of two graphs from their plans to the reference.

    Paper, appendix "Detailed Discussion on Linear Wasserstein Embedding", the discrete form of d_LOT: the least cost of
    a measure on triples whose pairs with the reference are the two plans. Given the reference's point the two graphs may
    be coupled at will, so that it falls apart into one small transport problem for each of the reference's points.

    Parameters
    ----------
    plan_i, plan_j : float64, (N, n_i) and (N, n_j)
        Their rows add up to the same weights of the reference.
    points_i, points_j : float64, (n_i, d) and (n_j, d)

    Returns
    -------
    float
        Between max(W_2, |phi_i - phi_j|) and sqrt(|phi_i - phi_j|^2 + r_i^2 + r_j^2).

    Raises
    ------
    ValueError
        If the plans are not of one reference.
    PlanError
        If points are not finite.

    Examples
    --------
    The reference is one point, so nothing is known of how the two graphs lie to each other but through it:

    >>> half = np.array([[0.5, 0.5]])
    >>> generalized_geodesic_distance(half, np.array([[0.0], [1.0]]), half, np.array([[1.0], [2.0]]))
    1.0

    The reference has two points, which tie the graphs' points together crosswise:

    >>> straight, crossed = np.diag([0.5, 0.5]), np.diag([0.5, 0.5])[::-1]
    >>> generalized_geodesic_distance(straight, np.array([[0.0], [1.0]]), crossed, np.array([[0.0], [1.0]]))
    1.0
    """
    if len(plan_i) != len(plan_j):
        raise ValueError(f"the plans have {len(plan_i)} and {len(plan_j)} rows; one for each of the reference's points")
    total = 0.0
    for row_i, row_j in zip(plan_i, plan_j, strict=True):
        used_i, used_j = np.flatnonzero(row_i), np.flatnonzero(row_j)
        mass = row_i.sum()
        given_i, given_j = row_i[used_i] / mass, row_j[used_j] / row_j.sum()
        costs = squared_distances(points_i[used_i], points_j[used_j])
        # Where one side has one point there is but one coupling.
        only_one = min(costs.shape) == 1
        coupling = np.outer(given_i, given_j) if only_one else exact_plan(given_i, given_j, costs)[0]
        total += mass * np.vdot(coupling, costs)
    return float(np.sqrt(total))


def _stored_error(length: FloatMatrix, phi: FloatArray) -> FloatMatrix:
    kind = np.finfo(phi.dtype)
    eps, smallest_normal = float(kind.eps), float(kind.tiny)
    # Entries below the normal range are rounded to multiples of the least number, whatever their size.
    absolute = np.sqrt(phi.shape[-1]) * smallest_normal * eps / 2
    error: FloatMatrix = length * (1 + eps) * eps / 2 + absolute
    return error


def _norm(phi: FloatArray) -> FloatMatrix:
    return np.asarray(np.sqrt(np.einsum("...k,...k->...", phi, phi, dtype=np.float64)), dtype=np.float64)


def _weights(weights: FloatArray | None, points: FloatMatrix) -> FloatMatrix:
    """Check the weights of points; all alike if not given."""
    if not len(points):
        raise PlanError("there are no points")
    if weights is None:
        return np.full(len(points), 1.0 / len(points))
    # In the type that they come in, weights that add up to 1 do so but for its rounding, which is a hundredth at most.
    given, eps = np.asarray(weights, dtype=np.float64), np.finfo(np.result_type(np.asarray(weights), np.float16)).eps
    tolerance = max(MARGINAL_TOLERANCE, min(len(points) * eps, 0.01))
    if given.shape != (len(points),) or not (given >= 0).all() or abs(given.sum() - 1) > tolerance:
        raise ValueError(f"weights have shape {given.shape}; {len(points)} of 0 or more are needed that add up to 1")
    # The solver takes other sums of single precision for infeasible.
    normalised: FloatMatrix = given / given.sum()
    return normalised


def _require_one_width(phi_i: FloatArray, phi_j: FloatArray) -> None:
    if phi_i.shape[-1:] != phi_j.shape[-1:]:
        raise ValueError(f"embeddings of shapes {phi_i.shape} and {phi_j.shape} are not of one width")
