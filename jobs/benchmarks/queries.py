"""Measure how long a query for neighbours takes, among the embeddings of ogbg-molhiv and among a million made of them.

With the exact scan, for one query and for a thousand; and with the approximate index for a thousand, which is built anew
for each call. The million are the embeddings and copies of them with noise. For example::

    python jobs/benchmarks/queries.py --data data
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _fitted import fit, job
from _measure import finish, parser

from wegl_dask.graphs import IntArray
from wegl_dask.vector_search import TRAINING_ROWS_PER_LIST, index_search, scan

Vectors = npt.NDArray[np.float32]

NEAREST = 10
BLOCK_ROWS = 20_000


def main() -> None:
    """Measure both sizes."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/")
    options.add_argument("--rows", type=int, default=1_000_000, help="embeddings of the larger search (default: 1e6)")
    arguments = options.parse_args()
    model, graphs = fit(job("ogbg-molhiv", arguments.data, "unused"))
    vectors = np.concatenate([block.phi.astype(np.float32) for block in model.embed(graphs)])
    searches = [search(vectors, n_rows, arguments.repeats) for n_rows in (len(vectors), arguments.rows)]
    finish({"benchmark": "queries", "searches": searches}, describe(searches), arguments)


def search(vectors: Vectors, n_rows: int, repeats: int) -> dict[str, Any]:
    """Time queries among `n_rows` embeddings: those of the set, or noisy copies of them."""

    def blocks() -> Iterator[tuple[int, Vectors]]:
        for start in range(0, n_rows, BLOCK_ROWS):
            yield start, _rows(vectors, start, min(start + BLOCK_ROWS, n_rows))

    held = list(blocks())
    n_lists = min(n_rows, int(4 * np.sqrt(n_rows)))
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(n_rows, min(n_rows, n_lists * TRAINING_ROWS_PER_LIST), replace=False))
    training = np.concatenate(
        [block[sample[(sample >= start) & (sample < start + len(block))] - start] for start, block in held]
    )
    own = rng.choice(n_rows, 1000, replace=False)
    queries = np.concatenate([held[row // BLOCK_ROWS][1][row % BLOCK_ROWS][None] for row in own])
    seconds: dict[str, list[float]] = {"scan_1": [], "scan_1000": [], "index_1000": []}
    found: dict[str, IntArray] = {}
    for _ in range(repeats):
        for name, times in seconds.items():
            kind, count = name.split("_")
            some, of = queries[: int(count)], own[: int(count)]
            started = time.perf_counter()
            if kind == "scan":
                found[name], _ = scan(iter(held), some, NEAREST, own=of)
            else:
                found[name], _ = index_search(lambda: held, training, some, NEAREST, n_lists=n_lists, own=of)
            times.append(time.perf_counter() - started)
    best = {name: min(times) for name, times in seconds.items()}
    hits = [len(np.intersect1d(one, two)) for one, two in zip(found["scan_1000"], found["index_1000"], strict=True)]
    return {
        "rows": n_rows,
        "width": vectors.shape[1],
        "seconds": {name: _rounded(value) for name, value in best.items()},
        "index_recall_at_10": _rounded(np.mean(hits) / NEAREST),
    }


def _rows(vectors: Vectors, start: int, stop: int) -> Vectors:
    """Give rows of an endless table: the vectors, then copies of them with noise of a tenth of their size."""
    if stop <= len(vectors):
        return vectors[start:stop]
    rng = np.random.default_rng([start, stop])
    some = vectors[np.arange(start, stop) % len(vectors)]
    size = np.linalg.norm(some, axis=1, keepdims=True) / np.sqrt(some.shape[1])
    return np.asarray(some + 0.1 * size * rng.standard_normal(some.shape, dtype=np.float32), dtype=np.float32)


def _rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")


def describe(searches: list[dict[str, Any]]) -> str:
    """Render the result as a table."""
    lines = [
        f"{'':>10}{'scan, seconds for':>20}{'index':>10}",
        f"{'rows':>10}{1:10}{1000:10,}{1000:10,}{'recall@10':>11}",
    ]
    lines += [
        f"{one['rows']:10,}{''.join(f'{value:10.3g}' for value in one['seconds'].values())}{one['index_recall_at_10']:11.3f}"
        for one in searches
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
