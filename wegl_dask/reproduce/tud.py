"""Tables 2 and 3: the accuracy of five classifiers on three kinds of node embeddings, on data sets of the TU collection.

The paper's protocol is ten-fold cross-validation; of all numbers of layers and all candidates of the grid, the mean of the
best over the folds is reported. That number is chosen by the labels it is measured on. Beside it stands, from the same
fits, each fold's accuracy by what is best on the other nine folds; and, if asked for, by what a cross-validation within
these nine finds best.

The grid is searched in two rounds: the model's first group of candidates with every number of layers, then the whole grid
with the numbers of layers that did best. What is left out can only lower the best mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import JobFileError
from wegl_dask.reading import Embeddings
from wegl_dask.reproduce.embedding import DataSet
from wegl_dask.reproduce.learners import GRID_VERSION, constants, table_learner
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.paper import PaperCell, paper_cell
from wegl_dask.training.crossvalidation import cross_validate, first_best
from wegl_dask.training.fits import FITS_VERSION
from wegl_dask.training.learner import Candidate, Learner
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.names import ModelName
from wegl_dask.training.problem import Problem
from wegl_dask.training.spreading import Workers
from wegl_dask.version import NUMERICS_VERSION

DATA_SETS = ("MUTAG", "PTC_MR", "ENZYMES", "PROTEINS", "IMDB-BINARY")
LARGE_DATA_SETS = ("REDDIT-BINARY", "COLLAB")
"""Data sets of which a smaller grid is searched, and only if they are named."""

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

LARGE_POOLINGS = ("concat",)
LARGE_LAYERS = (3, 5)
LARGE_MODELS: tuple[ModelName, ...] = ("svm-linear", "svm-rbf", "gradient-boosting", "random-forest")
"""The smaller grid; the vectors are of principal components of the node embeddings, as the job files have it."""

PACKAGES = ("numpy", "scikit-learn")
"""Whose versions are kept with what is computed."""

N_FOLDS = 10
INNER_FOLDS = 3
"""Folds that a training part is cut into where the nested number is asked for."""

Accuracies = npt.NDArray[np.float64]
Steps = dict[int, list[dict[str, Any]]]
Part = TypeVar("Part", str, int, ModelName)


@dataclass(frozen=True)
class Plan:
    """What is computed.

    Attributes
    ----------
    data_sets, poolings, layers, models : sequences
        Of the whole table, or of a part.
    nested : bool
        Whether candidates are chosen within each training part too, which takes four times as long.
    shortlisted : int
        Numbers of layers with which the whole grid is searched, and not the first group of candidates alone.
    seed : int
        Of folds and fits.
    """

    data_sets: Sequence[str] = DATA_SETS
    poolings: Sequence[str] = POOLINGS
    layers: Sequence[int] = LAYERS
    models: Sequence[ModelName] = tuple(METHODS)
    nested: bool = False
    shortlisted: int = 2
    seed: int = 0

    def of(self, name: str) -> "Plan":
        """Narrow the plan to one data set, and to the smaller grid if it is a large one.

        Raises
        ------
        JobFileError
            If nothing is left of the plan.
        """
        if name not in LARGE_DATA_SETS:
            return replace(self, data_sets=[name])
        return replace(
            self,
            data_sets=[name],
            poolings=_shared(name, "poolings", self.poolings, LARGE_POOLINGS),
            layers=_shared(name, "layers", self.layers, LARGE_LAYERS),
            models=_shared(name, "models", self.models, LARGE_MODELS),
        )


@dataclass(frozen=True)
class Cell:
    """A cell of table 3.

    Attributes
    ----------
    data_set, pooling, model : str
    paper : PaperCell or None
    best : float64, (n_folds,)
        Accuracy of the best configuration on every fold, in per cent.
    held_out : float64, (n_folds,)
        Accuracy on every fold of the configuration that is best on the other folds.
    nested : float64, (n_folds,), or None
        Accuracy of each fold's own choice, made within its training part.
    chosen : mapping
        The best configuration, ``layers`` among it.
    n_configurations : int
        How many were measured.
    how : mapping
        ``seed``, ``layers`` and ``shortlisted`` of the plan, the ``constants`` of the learner (see
        `wegl_dask.reproduce.learners.constants`), and when and with which versions the numbers were computed.
    """

    data_set: str
    pooling: str
    model: ModelName
    paper: PaperCell | None
    best: Accuracies
    held_out: Accuracies
    nested: Accuracies | None
    chosen: Mapping[str, Any]
    n_configurations: int
    how: Mapping[str, Any]

    @property
    def is_short(self) -> bool:
        """Whether it is more than one of the paper's standard deviations below the paper."""
        return self.paper is not None and self.best.mean() < self.paper.mean - (self.paper.std or 0)

    def to_json(self) -> dict[str, Any]:
        """Render what was computed, without the paper's number."""
        return {
            "data_set": self.data_set,
            "pooling": self.pooling,
            "model": self.model,
            "best": _rounded(self.best),
            "held_out": _rounded(self.held_out),
            "nested": None if self.nested is None else _rounded(self.nested),
            "chosen": dict(self.chosen),
            "n_configurations": self.n_configurations,
            "how": dict(self.how),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Cell":
        """Read what `to_json` rendered; the paper's number is looked up."""
        arrays = {
            name: None if values[name] is None else np.array(values[name]) for name in ("best", "held_out", "nested")
        }
        paper = papers_number(values["data_set"], values["pooling"], values["model"])
        return cls(**{**values, **arrays, "paper": paper})


def compute_cell(
    plan: Plan, data_set: DataSet, ledger: Ledger, workers: Workers, *, name: str, pooling: str, model: ModelName
) -> Cell:
    """Compute a cell of a plan, or what is missing of it.

    Parameters
    ----------
    plan : Plan
    data_set : DataSet
    ledger : Ledger
    workers : Workers
    name, pooling, model : str
        The cell: its data set, node embeddings and model.
    """
    own = ledger.fresh()
    steps = _CellSearch(plan, name, pooling, data_set, own, workers).run(model)
    searched = {
        "seed": plan.seed,
        "layers": list(plan.layers),
        "shortlisted": plan.shortlisted,
        "constants": constants(model, name, pooling),
    }
    return choose(name, pooling, model, steps, {**searched, **own.how()})


def choose(name: str, pooling: str, model: ModelName, steps: Steps, how: Mapping[str, Any]) -> Cell:
    """Choose among all candidates that were measured with all numbers of layers, in each of the ways.

    Parameters
    ----------
    name, pooling, model : str
        The cell.
    steps : dict of int to list of dict
        By the number of layers: ``candidates``, and of each the accuracy on every fold (``outer``), and its mean within
        every training part (``inner``, empty if not asked for).
    how : mapping
        Of the cell.
    """
    each = [(layers, step) for layers, of_layers in steps.items() for step in of_layers]
    configurations = [{"layers": layers, **candidate} for layers, step in each for candidate in step["candidates"]]
    outer = 100 * np.concatenate([np.array(step["outer"]) for _, step in each], axis=1)
    inner = np.concatenate([np.array(step["inner"]).reshape(len(outer), -1) for _, step in each], axis=1)
    best = int(first_best(outer.mean(axis=0)))
    folds = np.arange(len(outer))
    return Cell(
        data_set=name,
        pooling=pooling,
        model=model,
        paper=papers_number(name, pooling, model),
        best=outer[:, best],
        held_out=outer[folds, first_best(outer.sum(axis=0) - outer, axis=1)],
        nested=outer[folds, first_best(inner, axis=1)] if inner.size else None,
        chosen=configurations[best],
        n_configurations=len(configurations),
        how=how,
    )


@dataclass(frozen=True)
class _CellSearch:
    """The search of the grid for the cells of one data set and pooling."""

    plan: Plan
    name: str
    pooling: str
    data_set: DataSet
    ledger: Ledger
    workers: Workers

    def run(self, model: ModelName) -> Steps:
        """Measure the first group of candidates with every number of layers, the others with the best of these."""
        steps = {layers: [self._step(model, layers, is_first=True)] for layers in self.plan.layers}
        means = {layers: np.mean(step["outer"]) for layers, (step,) in steps.items()}
        best = sorted(means, key=lambda layers: -means[layers])[: self.plan.shortlisted]
        for layers in best:
            rest = self._step(model, layers, is_first=False)
            if rest["candidates"]:
                steps[layers].append(rest)
        return steps

    def _step(self, model: ModelName, layers: int, *, is_first: bool) -> dict[str, Any]:
        inner_folds = INNER_FOLDS if self.plan.nested else 0

        def compute() -> dict[str, Any]:
            diffusion = {"diffusion": {"layers": layers, "pooling": self.pooling}}
            embeddings: Embeddings = self.data_set.embed(f"{self.pooling}-{layers}", diffusion)
            problem = Problem.of(embeddings)
            learner = table_learner(model, problem, self.name, self.pooling)
            groups = _groups(learner, is_first=is_first)
            if not groups:
                return {"candidates": [], "outer": [], "inner": []}
            found = cross_validate(
                problem,
                learner,
                choose_metric(problem.kind, "cv", "accuracy"),
                self.workers,
                n_folds=N_FOLDS,
                seed=self.plan.seed,
                inner_folds=inner_folds,
                groups=groups,
                step=f"{self.name}, {self.pooling}, L = {layers}, {model}{'' if is_first else ', the rest of the grid'}",
            )
            return {
                "candidates": [dict(candidate) for candidate in found.candidates],
                "outer": found.outer.tolist(),
                "inner": found.inner.tolist(),
            }

        settings = {
            "seed": self.plan.seed,
            "folds": N_FOLDS,
            "inner_folds": inner_folds,
            "grid_version": GRID_VERSION,
            "fits_version": FITS_VERSION,
            **constants(model, self.name, self.pooling),
            "numerics_version": NUMERICS_VERSION,
            "data": self.data_set.fingerprint,
        }
        part = "first" if is_first else "rest"
        nested = "-nested" if self.plan.nested else ""
        name = f"tud-{self.name}-{self.pooling}-{layers}-{model}-{part}{nested}"
        step: dict[str, Any] = self.ledger.step(name, settings, compute, packages=PACKAGES, workers=self.workers)
        return step


def _shared(name: str, what: str, wanted: Sequence[Part], searched: Sequence[Part]) -> list[Part]:
    """Find what is wanted of the parts that are searched of a large data set."""
    found = [part for part in wanted if part in searched]
    if not found:
        raise JobFileError(
            f"nothing is computed of {name} with --{what} {','.join(map(str, wanted))}: its grid is smaller, and has "
            f"{', '.join(map(str, searched))}"
        )
    return found


def _groups(learner: Learner, *, is_first: bool) -> list[list[Candidate]]:
    groups = learner.groups()
    return groups[:1] if is_first else groups[1:]


def papers_number(name: str, pooling: str, model: ModelName) -> PaperCell | None:
    """Look up the paper's number for a cell."""
    return paper_cell(3, METHODS[model], name, pooling=pooling, metric="accuracy %")


def _rounded(values: Accuracies) -> list[float]:
    return [round(float(value), 4) for value in values]
