"""Figure 3: seconds of training and of inference by the number of graphs and their size, on one core of this machine.

Nine tenths of the graphs of a data set are the training part. What would take long is measured on a part and extrapolated:
the kernel in proportion to the pairs of graphs, GIN in proportion to the epochs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from wegl_dask.graphs import GraphBatch
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.provenance import PROCESSOR
from wegl_dask.reproduce.runtime_methods import CONSTANTS, GIN_EPOCHS, Labels, Timing, time_gin, time_wegl, time_wwl
from wegl_dask.spec import JobSpec
from wegl_dask.version import NUMERICS_VERSION

DATA_SETS = ("IMDB-BINARY", "MUTAG", "PTC_MR", "PROTEINS", "NCI1")
METHODS: Mapping[str, str] = {"wegl": "WEGL", "wwl": "WWL", "gin": "GIN"}
PACKAGES: Mapping[str, Sequence[str]] = {
    "wegl": (PROCESSOR, "numpy", "scikit-learn", "POT"),
    "wwl": (PROCESSOR, "wwl", "POT"),
    "gin": (PROCESSOR, "torch", "torch-geometric"),
}
"""What is kept with the seconds of a method: the processor, and versions."""

LONGEST = 30.0
"""Seconds that are measured of one method on one data set; what takes longer is extrapolated."""

PART = 40
"""Graphs whose pairs say how long the kernel takes."""


@dataclass(frozen=True)
class Measured:
    """What was measured on a data set.

    Attributes
    ----------
    data_set : str
    n_graphs : int
    mean_nodes, mean_edges : float
        Of a graph; an undirected edge counts once.
    timings : mapping of str to Timing
        By the names of `METHODS`.
    how : mapping of str to mapping
        Of each method: when, with which versions and on which processor it was measured.
    """

    data_set: str
    n_graphs: int
    mean_nodes: float
    mean_edges: float
    timings: Mapping[str, Timing]
    how: Mapping[str, Mapping[str, Any]]


def measure(
    name: str,
    job: JobSpec,
    graphs: GraphBatch,
    labels: Labels,
    *,
    data: str,
    ledger: Ledger,
    methods: Sequence[str],
) -> Iterator[Measured]:
    """Measure methods on a data set, or what is missing; yields what there is after each.

    Parameters
    ----------
    name : str
    job : JobSpec
        Of the data set: the settings of WEGL.
    graphs : GraphBatch
    labels : int64, (n_graphs,)
        Class indices.
    data : str
        Fingerprint of graphs and labels.
    ledger : Ledger
    methods : sequence of str
    """
    train, test = _parts(graphs.n_graphs)
    of_train, of_test = graphs.take(train), graphs.take(test)
    compute: Mapping[str, Callable[[], Timing]] = {
        "wegl": lambda: time_wegl(job, of_train, labels[train], of_test),
        "wwl": lambda: time_wwl(of_train, longest=LONGEST, part=PART),
        "gin": lambda: time_gin(job, of_train, labels[train], of_test, longest=LONGEST, n_epochs=GIN_EPOCHS),
    }
    timings: dict[str, Timing] = {}
    how = {}
    for method in methods:
        settings = {
            "graphs": graphs.n_graphs,
            "part": PART,
            "longest": LONGEST,
            **CONSTANTS[method],
            "numerics_version": NUMERICS_VERSION,
            "data": data,
        }
        own = ledger.fresh()
        step = partial(_as_values, compute[method])
        timings[method] = Timing(**own.step(f"runtime-{name}-{method}", settings, step, packages=PACKAGES[method]))
        how[method] = own.how()
        nodes, edges = graphs.n_nodes / len(graphs), graphs.n_edges / len(graphs) / 2
        yield Measured(name, graphs.n_graphs, nodes, edges, timings, how)


def _as_values(compute: Callable[[], Timing]) -> dict[str, float]:
    return vars(compute())


def _parts(n_graphs: int) -> tuple[Labels, Labels]:
    """Draw nine tenths of the graphs, and the rest."""
    order = np.random.default_rng(0).permutation(n_graphs)
    n_train = n_graphs * 9 // 10
    return np.sort(order[:n_train]), np.sort(order[n_train:])
