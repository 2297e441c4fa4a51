"""How much the choice of the reference matters: ROC-AUC on ogbg-molhiv with references of several kinds, seed by seed.

Paper, appendix "Sensitivity to the Choice of Reference Distribution": initial node embeddings of width 300, four layers.
A seed draws the atom embedding, the reference and the forest; kinds are compared seed by seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wegl_dask.reproduce.embedding import DataSet
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.numbers import Values
from wegl_dask.training.fits import FITS_VERSION
from wegl_dask.training.foreseen import require_measurable
from wegl_dask.training.learner import Candidate
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.models import make_learner
from wegl_dask.training.problem import Problem
from wegl_dask.training.protocols import measure_split, score_split
from wegl_dask.training.spreading import Workers
from wegl_dask.version import NUMERICS_VERSION

KINDS = ("kmeans", "normal", "barycenter")
"""The first is the one that the others are compared with."""

FOREST: Candidate = {"n_estimators": 100}
"""With balanced classes: the forest that the authors' published code fits."""

LAYERS, POOLING, WIDTH = 4, "final", 300

PACKAGES = ("numpy", "scipy", "scikit-learn")
"""Whose versions are kept with what is measured."""


@dataclass(frozen=True)
class Areas:
    """The area under the ROC curve with references of one kind, in per cent.

    Attributes
    ----------
    kind : str
    valid, test : float64, (n_seeds,)
        With the seeds 0, 1, ...
    how : mapping
        When and with which versions they were measured.
    """

    kind: str
    valid: Values
    test: Values
    how: Mapping[str, Any]


def measure_references(
    seeds: Mapping[str, int], data_set: DataSet, ledger: Ledger, workers: Workers, *, threads: int = 1
) -> Iterator[dict[str, Areas]]:
    """Measure all kinds of references with one seed after another, or what is missing.

    Yields what there is after every new measurement, and in the end.

    Parameters
    ----------
    seeds : mapping of str to int
        How many seeds each kind is measured with.
    data_set : DataSet
        Of the job file of ogbg-molhiv.
    ledger : Ledger
    workers : Workers
    threads : int
        That a forest is fitted with; its trees do not depend on it.
    """
    ledgers = {kind: ledger.fresh() for kind in seeds}
    found: dict[str, list[list[float]]] = {kind: [] for kind in seeds}
    new: list[str] = []

    def so_far() -> dict[str, Areas]:
        measured = {kind: 100 * np.array(areas) for kind, areas in found.items() if areas}
        return {kind: Areas(kind, both[:, 0], both[:, 1], ledgers[kind].how()) for kind, both in measured.items()}

    for seed in range(max(seeds.values())):
        for kind in seeds:
            if seed >= seeds[kind]:
                continue

            def compute(kind: str = kind, seed: int = seed) -> list[float]:
                new.append(kind)
                return _areas(data_set, workers, kind, seed, threads)

            settings = {
                "forest": FOREST,
                "width": WIDTH,
                "layers": LAYERS,
                "pooling": POOLING,
                "fits_version": FITS_VERSION,
                "numerics_version": NUMERICS_VERSION,
                "data": data_set.fingerprint,
            }
            step = ledgers[kind].step(f"reference-{kind}-{seed}", settings, compute, packages=PACKAGES)
            found[kind].append(step)
            if new:
                yield so_far()
            new.clear()
    yield so_far()


def p_value(one: Sequence[float] | Values, other: Sequence[float] | Values) -> float | None:
    """Test whether the means of two kinds differ, by the two-sided t-test for pairs, on the seeds that both have.

    None with fewer than two seeds, or where the differences are all alike.
    """
    from scipy.stats import ttest_rel  # noqa: PLC0415  takes a second

    n_seeds = min(len(one), len(other))
    if n_seeds < 2 or np.ptp(np.subtract(one[:n_seeds], other[:n_seeds])) == 0:
        return None
    return float(ttest_rel(one[:n_seeds], other[:n_seeds]).pvalue)


def _areas(data_set: DataSet, workers: Workers, kind: str, seed: int, threads: int) -> list[float]:
    """Embed with a reference, fit a forest to "train", and measure it on "valid" and on "test"."""
    name = f"reference-{kind}-{seed}"
    changes = {
        "nodes": {"atom_embedding_width": WIDTH},
        "diffusion": {"layers": LAYERS, "pooling": POOLING},
        "reference": {"kind": kind},
        "seed": seed,
    }
    problem = Problem.of(data_set.embed(name, changes))
    metric = choose_metric(problem.kind, "split", None)
    require_measurable(problem, metric)
    learner = make_learner("random-forest", problem, metric=metric.name, time_budget=1.0)
    forest = {**FOREST, "n_jobs": threads}
    (scores,) = score_split(problem, learner, forest, workers, seeds=[seed], step=f"{kind}, seed {seed}")
    areas = measure_split(problem, learner, metric, scores)
    data_set.remove(name)
    return areas
