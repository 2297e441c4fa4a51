"""Diffusion and entropic plans by torch, on a GPU: the numbers of the CPU, to float32 tolerance.

Notes
-----
All is done in float64: in float32 the marginals of a plan could not be brought as close as its checks ask for, and points
that are equal would not stay equal, where `wegl_dask.canonical.canonical_points` merges them.

`ot.batch` has such a solver, too. Here a graph leaves the batch when it has converged, where there it waits for the
slowest one; and POT need not import torch, which on workers it is told not to.
"""

import socket
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask import transport
from wegl_dask.canonical import WeightedPoints
from wegl_dask.diffusion import Pooling
from wegl_dask.errors import MissingDependencyError, WeglError
from wegl_dask.graphs import FloatArray, IntArray
from wegl_dask.transport import (
    CERTIFIED_EVERY,
    MARGINAL_TOLERANCE,
    SINKHORN_ITERATIONS,
    SINKHORN_TOLERANCE,
    TOO_LARGE_FOR_EXACT,
    Solver,
    TransportEmbeddings,
    first_entropic,
    largest_exact,
    marginals_off,
)

try:
    import torch
except ImportError as error:
    raise MissingDependencyError.for_extra("torch", "gpu") from error

FloatMatrix = npt.NDArray[np.float64]

DEVICE = "cuda"
"""The device's name in torch."""

BATCH_PAIRS = 16_000_000
"""Pairs of points of the graphs that are solved at a time: 128 MB an array, of which there are about six."""

LARGEST_PAIRS = 256_000_000
"""Pairs of points of the largest graph that is solved on the device: 12 GB. Larger ones are solved in strips on the CPU."""

CHECKED_EVERY = 10
"""Iterations between two looks at the marginals, for which the device has to be waited for."""


def require_device() -> None:
    """Look for the GPU.

    Raises
    ------
    WeglError
        If torch finds none in this process.
    """
    if not (DEVICE == "cpu" or torch.cuda.is_available()):
        raise WeglError(
            f"torch {torch.__version__} finds no GPU on {socket.gethostname()}: look at nvidia-smi and CUDA_VISIBLE_DEVICES, "
            'install a torch that is built for CUDA, or set device = "cpu"'
        )


def pooled(
    operator: "scipy.sparse.csr_array",
    features: "scipy.sparse.csr_array | FloatArray",
    *,
    layers: int,
    pooling: Pooling,
) -> FloatMatrix:
    """Propagate features through L layers and pool the results; see `wegl_dask.diffusion.pooled`."""
    matrix = _sparse(operator)
    current = _tensor(features.toarray() if isinstance(features, scipy.sparse.csr_array) else features)
    found = [current]
    for _ in range(layers):
        current = matrix @ current
        if pooling == "concat":
            found.append(current)
        elif pooling == "average":
            found[0] = found[0] + current
    if pooling == "concat":
        return _array(torch.cat(found, dim=1))
    return _array(found[0] / (layers + 1) if pooling == "average" else current)


def accumulated(
    operator: "scipy.sparse.csr_array", last: FloatMatrix, others: Iterable[FloatMatrix | None]
) -> FloatMatrix:
    """Propagate and add up what comes in at each layer; see `wegl_dask.diffusion.accumulated`."""
    matrix, total = _sparse(operator), _tensor(last)
    for term in others:
        total = matrix @ total
        if term is not None:
            total = total + _tensor(term)
    return _array(total)


def embed_points(
    points: WeightedPoints,
    reference: FloatMatrix,
    *,
    solver: Solver = "exact",
    regularization: float = 0.01,
    auto_size: int = 4_000_000,
    certified_every: int = CERTIFIED_EVERY,
) -> TransportEmbeddings:
    """Embed graphs, those of entropic plans on the device; see `wegl_dask.transport.embed_points`.

    Where the marginals of a plan do not converge the exact one is found, on the CPU.
    """
    pairs = np.diff(points.offsets) * len(reference)
    here = (pairs > first_entropic(solver, auto_size)) & (pairs > 0) & (pairs <= LARGEST_PAIRS)
    result = TransportEmbeddings.unsolved(len(pairs), reference.size)
    errors = np.zeros(len(pairs))
    for graphs in _batches(pairs, np.flatnonzero(here)):
        phi, cost, absolute, errors[graphs] = _solve(points, graphs, reference, regularization)
        result.phi[graphs], result.transport_cost[graphs] = phi, cost
        result.entropic[graphs], result.regularization[graphs] = True, absolute
    failed = ~(errors <= MARGINAL_TOLERANCE)
    too_large = failed & (pairs > largest_exact(solver, auto_size))
    for graphs, how in (
        (np.flatnonzero(~here), solver),
        (np.flatnonzero(failed & ~too_large), "exact"),
    ):
        others = transport.embed_points(
            points.take(graphs),
            reference,
            solver=how,
            regularization=regularization,
            auto_size=auto_size,
            certified_every=certified_every,
        )
        result.put(graphs, others)
    for graph in np.flatnonzero(too_large).tolist():
        reason = f"{marginals_off(errors[graph], 'sinkhorn solver')}; {TOO_LARGE_FOR_EXACT}"
        result.put(np.array([graph]), TransportEmbeddings.unsolved(1, reference.size, reason))
    return result


def _batches(pairs: IntArray, graphs: IntArray) -> Iterator[IntArray]:
    """Put graphs of about one size together, as many as may be solved at a time."""
    by_size = graphs[np.argsort(pairs[graphs], kind="stable")]
    start = 0
    while start < len(by_size):
        # They are padded to the size of the largest, the last.
        sizes = pairs[by_size[start:]]
        n_graphs = max(1, int(np.searchsorted(sizes * np.arange(1, len(sizes) + 1), BATCH_PAIRS, side="right")))
        yield by_size[start : start + n_graphs]
        start += n_graphs


def _solve(
    points: WeightedPoints, graphs: IntArray, reference: FloatMatrix, regularization: float
) -> tuple[FloatMatrix, FloatMatrix, FloatMatrix, FloatMatrix]:
    """Find the entropic plans of some graphs: phi, cost, regularisation in units of the cost, error of the marginals."""
    n_reference = len(reference)
    counts = np.diff(points.offsets)[graphs]
    place = np.arange(counts.max())
    # A graph is padded with its last point, without weight: no cost is added that is not there.
    rows = points.offsets[graphs][:, None] + np.minimum(place, counts[:, None] - 1)
    z, weights = _tensor(points.points[rows]), _tensor(np.where(place < counts[:, None], points.weights[rows], 0.0))
    z0 = _tensor(reference)
    # Squared after all, since the other way would go through a matrix product, which loses digits of small costs.
    costs = torch.cdist(z0.expand(len(z), -1, -1), z, compute_mode="donot_use_mm_for_euclid_dist").square()
    largest = costs.amax(dim=(1, 2))
    absolute = regularization * torch.where(largest == 0, 1.0, largest)
    exponents = costs / -absolute[:, None, None]
    u, v = _potentials(exponents, weights)
    plans = torch.exp(exponents + u[:, :, None] + v[:, None])
    row_errors = (plans.sum(dim=2) - 1 / n_reference).abs().sum(dim=1)
    column_errors = (plans.sum(dim=1) - weights).abs().sum(dim=1)
    phi = (n_reference * (plans @ z) - z0) / n_reference**0.5
    cost = (plans * costs).sum(dim=(1, 2))
    return _array(phi.flatten(1)), _array(cost), _array(absolute), _array(torch.maximum(row_errors, column_errors))


def _potentials(exponents: "torch.Tensor", weights: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Find u, (n_graphs, N), and v, (n_graphs, n), by the iteration of `wegl_dask.sinkhorn.solve`."""
    n_graphs, n_reference, _ = exponents.shape
    log_weights, log_reference_weight = weights.log(), -float(np.log(n_reference))
    u = exponents.new_zeros(n_graphs, n_reference)
    found_u, found_v, v = torch.zeros_like(u), torch.zeros_like(weights), torch.zeros_like(weights)
    left = torch.arange(n_graphs, device=u.device)
    for iteration in range(SINKHORN_ITERATIONS + 1):
        new_v = log_weights - torch.logsumexp(exponents + u[:, :, None], dim=1)
        is_last = iteration == SINKHORN_ITERATIONS
        if is_last or (iteration and iteration % CHECKED_EVERY == 0):
            change = torch.where(weights > 0, weights * torch.expm1(v - new_v).abs(), 0.0).sum(dim=1)
            # What is not a number will not become one.
            goes_on = (change > SINKHORN_TOLERANCE) & (not is_last)
            ended = ~goes_on
            found_u[left[ended]], found_v[left[ended]] = u[ended], v[ended]
            if not goes_on.any():
                break
            if ended.any():
                left, exponents, u, new_v = left[goes_on], exponents[goes_on], u[goes_on], new_v[goes_on]
                weights, log_weights = weights[goes_on], log_weights[goes_on]
        v = new_v
        u = log_reference_weight - torch.logsumexp(exponents + v[:, None], dim=2)
    return found_u, found_v


def _sparse(operator: "scipy.sparse.csr_array") -> "torch.Tensor":
    entries = operator.tocoo()
    places = torch.tensor(np.stack([entries.row, entries.col]), dtype=torch.int64, device=DEVICE)
    return torch.sparse_coo_tensor(places, _tensor(entries.data), operator.shape, check_invariants=False)


def _tensor(array: FloatArray) -> "torch.Tensor":
    return torch.tensor(array, dtype=torch.float64, device=DEVICE)


def _array(tensor: "torch.Tensor") -> FloatMatrix:
    found: FloatMatrix = tensor.cpu().numpy()
    return found
