"""Measure the inner part of the stage embed against the time spent in the solver's compiled core alone.

The inner part is what happens to canonical points: costs, solve, checks, barycentric projection, assembly. The core is
POT's `emd_c`, called on costs and weights that are ready. Both are CPU time of one process with a worker's environment,
in turn. Then the stage from graphs to vectors is run with and without merging equal points, which changes nothing in the
vectors. For example::

    python jobs/benchmarks/transport.py --data data
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _fitted import fit, job
from _measure import alternate, become_worker, finish, median, parser
from scipy.spatial.distance import cdist

from wegl_dask.canonical import WeightedPoints, canonical_points
from wegl_dask.graphs import GraphBatch
from wegl_dask.network_simplex import network_simplex
from wegl_dask.saved_model import Model
from wegl_dask.transport import embed_points

MERGED = ("REDDIT-BINARY", "IMDB-BINARY")


def cpu_seconds(run: Callable[[], Any]) -> float:
    """Time a call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def points_of(model: Model, graphs: GraphBatch) -> WeightedPoints:
    """Evaluate canonical points."""
    return canonical_points(*model.points.evaluate(graphs), model.rounding_step)


def without_merging(points: WeightedPoints, counts: np.ndarray) -> WeightedPoints:
    """Take every point as often as it occurs."""
    sizes = np.diff(points.offsets)
    often = np.rint(points.weights * np.repeat(counts, sizes)).astype(np.int64)
    return WeightedPoints(
        np.repeat(points.points, often, axis=0),
        np.repeat(1.0 / counts, counts),
        np.concatenate([[0], np.cumsum(counts)]),
    )


def measure(name: str, data: Path, n_graphs: int, repeats: int) -> dict[str, Any]:
    """Measure one data set."""
    model, graphs = fit(job(name, data, "unused"), n_graphs)
    points, reference = points_of(model, graphs), model.reference
    solve, uniform = network_simplex(), np.full(len(reference), 1.0 / len(reference))
    problems = []
    for start, stop in pairwise(points.offsets.tolist()):
        costs = cdist(reference, points.points[start:stop], "sqeuclidean")
        costs *= np.ldexp(1.0, -np.frexp(costs.max())[1])
        problems.append((uniform, points.weights[start:stop], costs, 1_000_000, 1))
    sides = {
        "core": lambda: cpu_seconds(lambda: [solve(*problem) for problem in problems]),
        "inner part": lambda: cpu_seconds(lambda: embed_points(points, reference)),
        "points": lambda: cpu_seconds(lambda: points_of(model, graphs)),
    }
    seconds = alternate({f"{name}: {side}": run for side, run in sides.items()}, repeats)
    per_graph = {side: median([1e6 * s / graphs.n_graphs for s in seconds[f"{name}: {side}"]]) for side in sides}
    result = {
        "graphs": graphs.n_graphs,
        "reference_points": len(reference),
        "dimension": model.dimension,
        "points_a_graph": round(len(points.points) / graphs.n_graphs, 1),
        "nodes_a_graph": round(graphs.n_nodes / graphs.n_graphs, 1),
        "microseconds_a_graph": per_graph,
        "inner_part_to_core": round(per_graph["inner part"] / per_graph["core"], 3),
    }
    return result | (merging(name, model, graphs, repeats) if name in MERGED else {})


def merging(name: str, model: Model, graphs: GraphBatch, repeats: int) -> dict[str, Any]:
    """Compare the stage with merged points to the same without merging."""
    graphs = graphs.take(np.arange(0, graphs.n_graphs, max(1, graphs.n_graphs // 200)))
    counts = graphs.node_counts + model.points.nodes.virtual_node
    apart = without_merging(points_of(model, graphs), counts)

    def merged() -> np.ndarray:
        return embed_points(points_of(model, graphs), model.reference).phi

    def unmerged() -> np.ndarray:
        points_of(model, graphs)
        return embed_points(apart, model.reference).phi

    difference = float(np.abs(merged() - unmerged()).max())
    seconds = alternate(
        {f"{name}: {side.__name__}": partial(cpu_seconds, side) for side in (merged, unmerged)}, repeats
    )
    milliseconds = {
        side: median([1e3 * s / graphs.n_graphs for s in seconds[f"{name}: {side}"]]) for side in ("merged", "unmerged")
    }
    return {
        "merging": {
            "graphs": graphs.n_graphs,
            "milliseconds_a_graph": milliseconds,
            "times_faster": round(milliseconds["unmerged"] / milliseconds["merged"], 2),
            "largest_difference": difference,
        }
    }


def main() -> None:
    """Measure all data sets."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/ and TUDataset/")
    options.add_argument("--graphs", type=int, default=4000, help="graphs of each set, at most (default: 4000)")
    options.add_argument(
        "--sets", nargs="+", default=["ogbg-molhiv", "PROTEINS", "IMDB-BINARY", "REDDIT-BINARY"], help="data sets"
    )
    arguments = options.parse_args()
    become_worker()
    sets = {
        name: measure(name, arguments.data, arguments.graphs if name != "REDDIT-BINARY" else 400, arguments.repeats)
        for name in arguments.sets
    }
    result = {"benchmark": "transport", "data_sets": sets}
    finish(result, describe(sets), arguments)


def describe(sets: dict[str, dict[str, Any]]) -> str:
    """Render the result as a table."""
    lines = [f"{'':15}{'N':>5}{'d':>4}{'points':>9}{'core us':>10}{'inner us':>10}{'ratio':>7}{'points us':>11}"]
    for name, found in sets.items():
        per_graph = found["microseconds_a_graph"]
        lines.append(
            f"{name:15}{found['reference_points']:5}{found['dimension']:4}{found['points_a_graph']:9}"
            f"{per_graph['core']:10.1f}{per_graph['inner part']:10.1f}{found['inner_part_to_core']:7.2f}"
            f"{per_graph['points']:11.1f}"
        )
    for name, found in sets.items():
        if "merging" in found:
            merging_ = found["merging"]
            times = merging_["milliseconds_a_graph"]
            lines.append(
                f"{name}: {times['merged']:.3g} ms a graph with equal points merged, {times['unmerged']:.3g} without: "
                f"{merging_['times_faster']} times faster; vectors differ by {merging_['largest_difference']:.1e} at most"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
