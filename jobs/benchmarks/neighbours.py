"""Measure the search for neighbours: how many of the nearest by W_2 are among the nearest in the embedding.

For each kind of reference, molecules from all over ogbg-molhiv are embedded and compared pair by pair with their exact
2-Wasserstein distances: how many of the ten nearest are among the ten, and the hundred, nearest in the embedding, how far
|phi_i - phi_j| is off, and how wide the bound is. The points, and so the exact distances, are the same for all references;
they take a tenth of a millisecond a pair, and are kept in ``--folder``, where the program goes on. For example::

    python jobs/benchmarks/neighbours.py --data data --folder distances
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _fitted import fit, job
from _measure import finish, parser, working_folder
from scipy.spatial.distance import cdist

from wegl_dask.canonical import WeightedPoints, canonical_points
from wegl_dask.geometry import wasserstein_bound, wasserstein_distance
from wegl_dask.graphs import GraphBatch
from wegl_dask.saved_model import Model

FloatMatrix = npt.NDArray[np.float64]

REFERENCES = ("kmeans", "normal", "barycenter", "sample")
NEAREST = 10
CANDIDATES = 100
"""What ``wegl-dask neighbours --exact`` ranks unless told otherwise."""

CHUNK_ROWS = 50


def main() -> None:
    """Measure all references."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/")
    options.add_argument("--graphs", type=int, default=2000, help="molecules that are compared (default: 2000)")
    options.add_argument("--folder", type=Path, help="keep the exact distances here")
    arguments = options.parse_args()
    references = {}
    with working_folder(arguments.folder) as folder:
        for kind in REFERENCES:
            model, graphs = fit(job("ogbg-molhiv", arguments.data, "unused", reference={"kind": kind}))
            some = _from_all_over(graphs, arguments.graphs)
            references[kind] = compare(model, some, exact_distances(points_of(model, some), folder))
    result = {"benchmark": "neighbours", "graphs": arguments.graphs, "references": references}
    finish(result, describe(references), arguments)


def points_of(model: Model, graphs: GraphBatch) -> WeightedPoints:
    """Compute what is transported."""
    return canonical_points(*model.points.evaluate(graphs), model.rounding_step)


def exact_distances(points: WeightedPoints, folder: Path) -> FloatMatrix:
    """Compute W_2 of all pairs, (n, n), some rows at a time; rows that are in the folder are not computed again."""
    n_graphs = len(points.offsets) - 1
    graphs = [points.slice(i, i + 1) for i in range(n_graphs)]
    distances = np.zeros((n_graphs, n_graphs))
    for start in range(0, n_graphs, CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, n_graphs))
        kept = folder / f"rows-{start:06d}-of-{n_graphs}.npy"
        if not kept.exists():
            found = np.zeros((rows.stop - start, n_graphs))
            for i in range(start, rows.stop):
                one = graphs[i]
                for j in range(i + 1, n_graphs):
                    two = graphs[j]
                    found[i - start, j] = wasserstein_distance(one.points, one.weights, two.points, two.weights)
            np.save(kept, found)
        distances[rows] = np.load(kept)
    return distances + distances.T


def compare(model: Model, graphs: GraphBatch, exact: FloatMatrix) -> dict[str, Any]:
    """Compare the embedding with the exact distances."""
    blocks = list(model.embed(graphs))
    vectors = np.concatenate([block.phi.astype(np.float32) for block in blocks])
    costs = np.concatenate([block.transport_cost for block in blocks])
    distances = cdist(vectors, vectors)
    one, two = np.triu_indices(len(vectors), 1)
    bounds = np.concatenate(
        [wasserstein_bound(vectors[i], vectors[i + 1 :], costs[i], costs[i + 1 :]) for i in range(len(vectors))]
    )
    apart = exact[one, two] > 0
    truth, found = exact[one, two][apart], distances[one, two][apart]
    return {
        "n_points": model.n_points,
        "pairs": len(truth),
        "recall_at_10": recall(exact, distances, NEAREST),
        "recall_at_10_of_100_candidates": recall(exact, distances, CANDIDATES),
        "mean_relative_error": _rounded(np.abs(found / truth - 1).mean()),
        "fraction_below": _rounded((found < truth * (1 - 1e-6)).mean()),
        "bound_mean_ratio": _rounded((bounds[apart] / truth).mean()),
        "bound_broken": int((bounds[apart] < truth).sum()),
    }


def recall(exact: FloatMatrix, distances: FloatMatrix, n_candidates: int) -> float:
    """Part of the ten nearest by W_2 that are among the nearest in the embedding; equally near ones count alike."""
    exact, distances = exact.copy(), distances.copy()
    np.fill_diagonal(exact, np.inf)
    np.fill_diagonal(distances, np.inf)
    limit = np.sort(exact, axis=1)[:, NEAREST - 1 : NEAREST] * (1 + 1e-9)
    candidates = np.argpartition(distances, n_candidates, axis=1)[:, :n_candidates]
    hits = (np.take_along_axis(exact, candidates, axis=1) <= limit).sum(axis=1)
    return _rounded(np.minimum(hits, NEAREST).mean() / NEAREST)


def _from_all_over(graphs: GraphBatch, n_graphs: int) -> GraphBatch:
    """Take graphs from all over the set, at equal distances."""
    return graphs.take(np.linspace(0, graphs.n_graphs - 1, n_graphs).round().astype(np.int64))


def _rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")


def describe(references: dict[str, dict[str, Any]]) -> str:
    """Render the result as a table."""
    lines = [f"{'reference':12}{'N':>4}{'recall@10':>11}{'of 100':>8}{'error':>8}{'below':>8}{'bound':>8}{'broken':>8}"]
    lines += [
        f"{kind:12}{one['n_points']:4}{one['recall_at_10']:11.3f}{one['recall_at_10_of_100_candidates']:8.3f}"
        f"{one['mean_relative_error']:8.1%}{one['fraction_below']:8.1%}{one['bound_mean_ratio']:8.2f}{one['bound_broken']:8}"
        for kind, one in references.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
