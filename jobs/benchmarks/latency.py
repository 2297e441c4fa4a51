"""Measure one molecule through a loaded model, in this process, without Dask: what a service would wait for.

The model is fitted to ogbg-molhiv and kept on disk as a run keeps it; it is loaded, called once, and then once for every
one of a sample of molecules. For example::

    python jobs/benchmarks/latency.py --data data
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from _fitted import fit, job
from _measure import finish, parser

from wegl_dask.saved_model import Model


def main() -> None:
    """Measure every molecule of the sample, several times over."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/")
    options.add_argument("--graphs", type=int, default=1000, help="molecules (default: 1000)")
    arguments = options.parse_args()
    model, graphs = fit(job("ogbg-molhiv", arguments.data, "unused"), arguments.graphs)
    result = measure(model, [graphs.slice(i, i + 1) for i in range(graphs.n_graphs)], arguments.repeats)
    finish(result, describe(result), arguments)


def measure(model: Model, molecules: list[Any], repeats: int) -> dict[str, Any]:
    """Time single molecules."""

    def embed(molecule: Any) -> float:
        started = time.perf_counter()
        (embedded,) = model.embed(molecule)
        seconds = time.perf_counter() - started
        if not np.isfinite(embedded.phi).all():
            raise ValueError("the vector is not finite")
        return 1e3 * seconds

    first = embed(molecules[0])
    warm = np.array([[embed(molecule) for molecule in molecules] for _ in range(repeats)])
    return {
        "benchmark": "latency",
        "molecules": len(molecules),
        "first_milliseconds": round(first, 3),
        "median_milliseconds": round(float(np.median(warm)), 3),
        "percentile_99_milliseconds": round(float(np.percentile(warm, 99)), 3),
    }


def describe(result: dict[str, Any]) -> str:
    """Render the result."""
    return (
        f"one molecule through a loaded model: {result['median_milliseconds']} ms (median of {result['molecules']} "
        f"molecules), {result['percentile_99_milliseconds']} ms (99th percentile), {result['first_milliseconds']} ms the "
        "first time"
    )


if __name__ == "__main__":
    main()
