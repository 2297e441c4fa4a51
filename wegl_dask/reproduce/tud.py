"""Tables 2 and 3: the accuracy of five classifiers on three kinds of node embeddings, on data sets of the TU collection.

The paper's protocol is ten-fold cross-validation; of all numbers of layers and all candidates of the grid, the mean of the
best over the folds is reported. Beside it stands the honest number: for each fold, the number of layers and the candidate
are chosen by a cross-validation within the other nine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.reading import Embeddings
from wegl_dask.reproduce.embedding import DataSet
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.paper import PaperCell, paper_cell
from wegl_dask.training.crossvalidation import INNER_FOLDS, cross_validate
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.models import make_learner
from wegl_dask.training.names import ModelName
from wegl_dask.training.problem import Problem
from wegl_dask.training.spreading import Workers
from wegl_dask.version import NUMERICS_VERSION

DATA_SETS = ("MUTAG", "PTC_MR", "ENZYMES", "PROTEINS", "IMDB-BINARY")
POOLINGS = ("concat", "average", "final")
LAYERS = tuple(range(3, 9))
METHODS: Mapping[ModelName, str] = {
    "svm-linear": "WEGL + SVM-Linear",
    "svm-rbf": "WEGL + SVM-RBF",
    "gradient-boosting": "WEGL + GBDT",
    "mlp": "WEGL + MLP",
    "random-forest": "WEGL + RF",
}
"""Models, and what the paper's table 3 calls them."""

N_FOLDS = 10


@dataclass(frozen=True)
class Plan:
    """What is computed.

    Attributes
    ----------
    data_sets, poolings, layers, models : sequences
        Of the whole table, or of a part.
    nested : bool
        Whether the honest number is computed too, which takes six times as long.
    seed : int
        Of folds and fits.
    """

    data_sets: Sequence[str] = DATA_SETS
    poolings: Sequence[str] = POOLINGS
    layers: Sequence[int] = LAYERS
    models: Sequence[ModelName] = tuple(METHODS)
    nested: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Cell:
    """A cell of table 3.

    Attributes
    ----------
    data_set, pooling, model : str
    paper : PaperCell or None
    best : float64, (n_folds,)
        Accuracy of the best configuration on every fold, in per cent.
    nested : float64, (n_folds,), or None
        Accuracy of each fold's own choice.
    chosen : mapping
        The best configuration, ``layers`` among it.
    """

    data_set: str
    pooling: str
    model: ModelName
    paper: PaperCell | None
    best: npt.NDArray[np.float64]
    nested: npt.NDArray[np.float64] | None
    chosen: Mapping[str, Any]

    @property
    def is_short(self) -> bool:
        """Whether it is more than one of the paper's standard deviations below the paper."""
        return self.paper is not None and self.best.mean() < self.paper.mean - (self.paper.std or 0)


def compute_cells(plan: Plan, data_sets: Mapping[str, DataSet], ledger: Ledger, workers: Workers) -> list[Cell]:
    """Compute the cells of a plan, or what is missing of them.

    Parameters
    ----------
    plan : Plan
    data_sets : mapping of str to DataSet
        Of every name in the plan.
    ledger : Ledger
    workers : Workers
    """
    cells = []
    for name in plan.data_sets:
        for pooling in plan.poolings:
            steps = {
                (model, layers): _step(
                    plan, data_sets[name], ledger, workers, name=name, pooling=pooling, model=model, layers=layers
                )
                for layers in plan.layers
                for model in plan.models
            }
            for model in plan.models:
                of_layers = {layers: steps[model, layers] for layers in plan.layers}
                cells.append(_cell(name, pooling, model, of_layers))
    return cells


def _step(
    plan: Plan,
    data_set: DataSet,
    ledger: Ledger,
    workers: Workers,
    *,
    name: str,
    pooling: str,
    model: ModelName,
    layers: int,
) -> dict[str, Any]:
    """Measure every candidate of a model on every fold, with one number of layers."""

    def compute() -> dict[str, Any]:
        diffusion = {"diffusion": {"layers": layers, "pooling": pooling}}
        embeddings: Embeddings = data_set.embed(f"{pooling}-{layers}", diffusion)
        problem = Problem.of(embeddings)
        metric = choose_metric(problem.kind, "cv", "accuracy")
        learner = make_learner(model, problem, metric="accuracy", time_budget=1.0)
        found = cross_validate(
            problem,
            learner,
            metric,
            workers,
            n_folds=N_FOLDS,
            seed=plan.seed,
            nested=plan.nested,
            step=f"{name}, {pooling}, L = {layers}, {model}",
        )
        return {
            "candidates": [dict(candidate) for candidate in found.candidates],
            "outer": found.outer.tolist(),
            "inner": found.inner.tolist(),
        }

    settings = {
        "seed": plan.seed,
        "folds": N_FOLDS,
        "inner_folds": INNER_FOLDS if plan.nested else 0,
        "numerics_version": NUMERICS_VERSION,
    }
    step: dict[str, Any] = ledger.step(f"tud-{name}-{pooling}-{layers}-{model}", settings, compute)
    return step


def _cell(name: str, pooling: str, model: ModelName, steps: Mapping[int, Mapping[str, Any]]) -> Cell:
    """Choose among all candidates with all numbers of layers, in both ways."""
    configurations = [
        {"layers": layers, **candidate} for layers, step in steps.items() for candidate in step["candidates"]
    ]
    outer = 100 * np.concatenate([np.array(step["outer"]) for step in steps.values()], axis=1)
    inner = np.concatenate([np.array(step["inner"]).reshape(len(outer), -1) for step in steps.values()], axis=1)
    best = int(outer.mean(axis=0).argmax())
    return Cell(
        data_set=name,
        pooling=pooling,
        model=model,
        paper=paper_cell(3, METHODS[model], name, pooling=pooling, metric="accuracy %"),
        best=outer[:, best],
        nested=outer[np.arange(len(outer)), inner.argmax(axis=1)] if inner.size else None,
        chosen=configurations[best],
    )
