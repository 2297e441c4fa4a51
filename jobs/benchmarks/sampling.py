"""Compare references by k-means from a sample of the node embeddings with those from all of them.

What is compared is what k-means minimises: the mean squared distance of all node embeddings of a data set to the nearest
reference point. Samples are drawn as a run draws them, a new one for every seed. For example::

    python jobs/benchmarks/sampling.py --data data --repeats 8
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _fitted import fit, job
from _measure import finish, parser

from wegl_dask.canonical import squared_distances
from wegl_dask.fitting import draw_points
from wegl_dask.graphs import GraphBatch
from wegl_dask.job_checks import NODES_A_POINT
from wegl_dask.reference import KMEANS_DTYPE, kmeans_reference_in_memory
from wegl_dask.saved_model import Model
from wegl_dask.spec import ReferenceTable

NAMES = ("ogbg-molhiv", "REDDIT-BINARY")
SIZES = (None, NODES_A_POINT, NODES_A_POINT // 10)
"""Node embeddings in a sample for each reference point; None is all of them."""

BLOCK = 65_536


def main() -> None:
    """Measure every data set."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/ and TUDataset/")
    options.add_argument("--only", choices=NAMES, help="this data set alone")
    options.add_argument("--graphs", type=int, help="take so many graphs of each alone")
    arguments = options.parse_args()
    names = [arguments.only] if arguments.only else NAMES
    found = {
        name: measure(*fit(job(name, arguments.data, "unused"), arguments.graphs), arguments.repeats) for name in names
    }
    result = {"benchmark": "sampling", "data_sets": found}
    finish(result, describe(result), arguments)


def measure(model: Model, graphs: GraphBatch, repeats: int) -> dict[str, Any]:
    """Take references from samples of every size, `repeats` of each."""
    n_points = graphs.n_nodes + graphs.n_graphs * model.points.nodes.virtual_node
    every = draw_points(model.points, graphs, n_points, np.random.default_rng(0)).astype(KMEANS_DTYPE)
    kmeans = partial(
        kmeans_reference_in_memory, n_points=model.n_points, epochs=ReferenceTable().epochs, step=model.rounding_step
    )
    samples: dict[str, Any] = {}
    for each in SIZES:
        size = None if each is None else each * model.n_points
        if size is not None and size >= n_points:
            continue
        distances, seconds = [], []
        for seed in range(repeats):
            points = every
            if size is not None:
                points = draw_points(model.points, graphs, size, np.random.default_rng(seed)).astype(KMEANS_DTYPE)
            started = time.perf_counter()
            reference = kmeans(points, seed=seed)
            seconds.append(time.perf_counter() - started)
            distances.append(mean_squared_distance(every, reference))
        samples["all" if each is None else str(each)] = {
            "nodes": n_points if size is None else size,
            "mean_squared_distance": float(f"{np.mean(distances):.5g}"),
            "standard_deviation": float(f"{np.std(distances, ddof=1):.2g}") if repeats > 1 else None,
            "seconds": round(float(np.median(seconds)), 2),
        }
    return {"nodes": n_points, "reference_points": model.n_points, "repeats": repeats, "samples": samples}


def mean_squared_distance(points: npt.NDArray[np.float32], reference: npt.NDArray[np.float64]) -> float:
    """Average the squared distance of points to the nearest reference point."""
    blocks = (points[start : start + BLOCK] for start in range(0, len(points), BLOCK))
    return sum(float(squared_distances(block, reference).min(axis=1).sum()) for block in blocks) / len(points)


def describe(result: dict[str, Any]) -> str:
    """Render the result as a table."""
    lines = [f"{'':16}{'N':>5}{'sample':>11}{'mean squared distance':>24}{'+-':>9}{'k-means, s':>12}"]
    for name, one in result["data_sets"].items():
        for sample in one["samples"].values():
            deviation = sample["standard_deviation"]
            lines.append(
                f"{name:16}{one['reference_points']:5}{sample['nodes']:11,}"
                f"{sample['mean_squared_distance']:24.5g}{deviation if deviation is not None else '':>9}"
                f"{sample['seconds']:12.2f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
