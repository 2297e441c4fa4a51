"""Measure all distances between the graphs of a set: our vectors against exact 2-Wasserstein distances.

Ours are the points of all graphs, their vectors and all Euclidean distances between these. The other side solves one
linear program a pair of graphs, on the same points, with `ot.emd2`; all pairs would take hours, so a random sample of them
is solved and multiplied up. That is the loop of the `wwl` package, whose scheme for nodes with numbers does not run: it
builds ragged arrays, which NumPy has refused since 1.24. For example::

    python jobs/benchmarks/pairwise.py --data data
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ot
from _fitted import fit, job
from _measure import alternate, become_worker, finish, median, parser
from scipy.spatial.distance import pdist

from wegl_dask.canonical import canonical_points

SETS = {"PTC_MR": None, "PROTEINS": None, "ogbg-molhiv": 4000}


def wall_seconds(run: Callable[[], Any]) -> float:
    """Time a call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(name: str, data: Path, n_graphs: int | None, n_pairs: int, repeats: int) -> dict[str, Any]:
    """Measure one data set."""
    model, graphs = fit(job(name, data, "unused"), n_graphs)
    points = canonical_points(*model.points.evaluate(graphs), model.rounding_step)
    sets = np.split(points.points, points.offsets[1:-1])
    weights = np.split(points.weights, points.offsets[1:-1])
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.choice(graphs.n_graphs, 2, replace=False)) for _ in range(n_pairs)]
    all_pairs = graphs.n_graphs * (graphs.n_graphs - 1) // 2

    def ours() -> None:
        vectors = np.concatenate([block.phi for block in model.embed(graphs)]).astype(np.float32)
        pdist(vectors)

    def exact() -> None:
        for i, j in pairs:
            ot.emd2(weights[i], weights[j], ot.dist(sets[i], sets[j]))

    runs = alternate({f"{name}: {side.__name__}": partial(wall_seconds, side) for side in (ours, exact)}, repeats)
    seconds = median(runs[f"{name}: ours"])
    sampled = median(runs[f"{name}: exact"])
    in_all = sampled / n_pairs * all_pairs
    return {
        "graphs": graphs.n_graphs,
        "pairs": all_pairs,
        "sampled_pairs": n_pairs,
        "ours_seconds": seconds,
        "exact_microseconds_a_pair": round(1e6 * sampled / n_pairs, 1),
        "exact_seconds_in_all": float(f"{in_all:.4g}"),
        "times_faster": float(f"{in_all / seconds:.3g}"),
    }


def main() -> None:
    """Measure all data sets."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/ and TUDataset/")
    options.add_argument("--pairs", type=int, default=3000, help="pairs that are solved exactly (default: 3000)")
    arguments = options.parse_args()
    become_worker()
    sets = {
        name: measure(name, arguments.data, n_graphs, arguments.pairs, arguments.repeats)
        for name, n_graphs in SETS.items()
    }
    finish({"benchmark": "pairwise", "data_sets": sets}, describe(sets), arguments)


def describe(sets: dict[str, dict[str, Any]]) -> str:
    """Render the result as a table."""
    lines = [f"{'':14}{'graphs':>8}{'pairs':>12}{'ours s':>10}{'exact s':>12}{'ratio':>9}"]
    lines += [
        f"{name:14}{one['graphs']:8,}{one['pairs']:12,}{one['ours_seconds']:10.2f}{one['exact_seconds_in_all']:12,.0f}"
        f"{one['times_faster']:9,.0f}"
        for name, one in sets.items()
    ]
    lines.append(
        "Vectors cost as much a graph however many graphs there are, exact distances a pair: the ratio grows as the"
    )
    lines.append("number of graphs, until the Euclidean distances of all pairs take the time of the vectors.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
