"""Table 1: the area under the ROC curve of four methods on ogbg-molhiv, by its scaffold split.

Everything is chosen on the part "valid" alone, and in steps that narrow the choice. With a small forest: the number of
layers, with final pooling and the paper's width of the atom embedding; then the pooling, with the numbers of layers that
did best; then the width. With the best of them, the smallest leaf and the smallest split of a forest, by few trees; then
the number of trees. The winner is fitted with several seeds of the classifier, and, apart from that, to embeddings with
several seeds, which draw the atom embedding and the reference. In the place of these fits AutoML searches anew.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wegl_dask.reproduce.embedding import DataSet
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.numbers import Values
from wegl_dask.training import automl
from wegl_dask.training.fits import FITS_VERSION, Fit, Search, fit, search
from wegl_dask.training.foreseen import require_measurable
from wegl_dask.training.learner import Candidate, Fold, Learner
from wegl_dask.training.metrics import Metric, choose_metric, mean_over_tasks
from wegl_dask.training.models import make_learner
from wegl_dask.training.names import ModelName
from wegl_dask.training.problem import FloatMatrix, Problem
from wegl_dask.training.protocols import measure_split, score_split
from wegl_dask.training.spreading import Workers
from wegl_dask.version import NUMERICS_VERSION

DATA_SET = "ogbg-molhiv"
LAYERS = tuple(range(3, 9))
POOLINGS = ("final", "concat", "average")
WIDTHS = (300, 100, 500)
"""The first of them is the one that layers and pooling are chosen with; so is the first of the poolings."""

SCREENING: Candidate = {"min_samples_leaf": 5, "n_estimators": 50}
SCREENING_SEEDS = (0, 1)
"""A setting is screened by so many forests, whose scores are averaged: 100 trees in all."""

FEW_TREES = 50
"""Trees of the forests that sizes of leaves and splits are compared by."""

N_BEST = 2
"""Numbers of layers that the poolings are compared with."""

SEARCHES_AT_A_TIME = 2
"""Searches of the AutoML library that are one step: each takes one core for a long time, and what is done is kept."""

PACKAGES = ("numpy", "scikit-learn")
AUTOML_PACKAGES = (*PACKAGES, *automl.PACKAGES)
"""Whose versions are kept with what is computed."""


@dataclass(frozen=True)
class Method:
    """A row of table 1.

    Attributes
    ----------
    title : str
        What the paper calls it.
    graphs : str
        Which settings it shares with others: embeddings of one kind are searched once, with forests.
    tables : mapping
        Keys of the job file that the embeddings of this kind have in common.
    model : str
    """

    title: str
    graphs: str
    tables: Mapping[str, Mapping[str, Any]]
    model: ModelName = "random-forest"


_VIRTUAL_NODE = {"nodes": {"virtual_node": True}}

METHODS: Mapping[str, Method] = {
    "wegl": Method("WEGL + RF", "plain", {"nodes": {"virtual_node": False}}),
    "virtual-node": Method("WEGL + virtual node + RF", "virtual-node", _VIRTUAL_NODE),
    "automl": Method("WEGL + virtual node + AutoML", "virtual-node", _VIRTUAL_NODE, "automl"),
    "average": Method("GAP + virtual node + RF", "average", {**_VIRTUAL_NODE, "reference": {"kind": "origin"}}),
}
"""The methods by the names that the command has for them."""


@dataclass(frozen=True)
class Setting:
    """What the node embeddings are computed with.

    Attributes
    ----------
    layers : int
    pooling : str
    width : int
        Of the atom embedding.
    """

    layers: int
    pooling: str
    width: int

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.pooling}-{self.layers}-{self.width}"


@dataclass(frozen=True)
class Plan:
    """What is computed.

    Attributes
    ----------
    methods : sequence of str
        Of `METHODS`.
    layers, poolings, widths : sequences
        That are searched.
    seeds : int
        Fits of the chosen candidate, and searches of the AutoML library.
    embedding_seeds : int
        Embeddings with the chosen setting that the chosen candidate is fitted to, or searched on, each once; 0 for none.
    time_budget : float
        Seconds of a search of the AutoML library.
    threads : int
        That a forest is fitted with; its trees do not depend on it.
    """

    methods: Sequence[str] = tuple(METHODS)
    layers: Sequence[int] = LAYERS
    poolings: Sequence[str] = POOLINGS
    widths: Sequence[int] = WIDTHS
    seeds: int = 10
    embedding_seeds: int = 10
    time_budget: float = 600.0
    threads: int = 1


@dataclass(frozen=True)
class Row:
    """What was found for a method.

    Attributes
    ----------
    method : str
    setting : mapping
        The chosen setting of the node embeddings.
    candidate : mapping
        The chosen candidate of the grid of forests; empty for AutoML.
    screened : mapping of str to float
        The settings that were compared, by name: the area under the curve on "valid" by the small forest, in per cent.
    valid, test : float64, (n_seeds,)
        The area under the curve with each seed of the classifier, in per cent.
    embedding_valid, embedding_test : float64, (n_embedding_seeds,)
        With each seed of the embedding.
    together : mapping of str to float
        ``valid`` and ``test``, where the scores of the latter are averaged; empty where there are none.
    how : mapping
        ``time_budget``, None without AutoML, and when and with which versions the numbers were computed.
    """

    method: str
    setting: Mapping[str, Any]
    candidate: Mapping[str, Any]
    screened: Mapping[str, float]
    valid: Values
    test: Values
    how: Mapping[str, Any]
    embedding_valid: Values = field(default_factory=lambda: np.empty(0))
    embedding_test: Values = field(default_factory=lambda: np.empty(0))
    together: Mapping[str, float] = field(default_factory=dict)


class Molhiv:
    """The steps of table 1.

    Parameters
    ----------
    plan : Plan
    data_set : DataSet
        Of the job file of ogbg-molhiv.
    ledger : Ledger
    workers : Workers
    """

    def __init__(self, plan: Plan, data_set: DataSet, ledger: Ledger, workers: Workers) -> None:
        self._plan = plan
        self._data_set = data_set
        self._ledger = ledger  # of the steps of one row
        self._workers = workers
        self._is_new = False  # whether a step was computed since the last row

    def compute(self, add: Callable[[Row], None]) -> None:
        """Compute the rows of the plan, or what is missing of them, and hand on what there is of a row after every step."""
        for name in self._plan.methods:
            row = None
            for row in self._rows(name):
                if self._is_new:
                    add(row)
                self._is_new = False
            if row is not None:
                add(row)

    def _rows(self, name: str) -> Iterator[Row]:
        """Compute a row with more and more seeds."""
        method = METHODS[name]
        self._ledger = self._ledger.fresh()
        setting, candidate, screened = self._choose(method)
        if method.model == "automl":
            candidate = {}
        for valid, test in self._with_seeds(method, setting, candidate):
            row = Row(name, vars(setting), candidate, screened, valid, test, self._how(method))
            yield row
        if self._plan.embedding_seeds:
            yield from self._with_embedding_seeds(row, method, setting)

    def _choose(self, method: Method) -> tuple[Setting, Candidate, dict[str, float]]:
        """Find the setting and the candidate that do best on "valid", and how the settings did that were compared."""
        plan = self._plan
        first = [Setting(layers, plan.poolings[0], plan.widths[0]) for layers in plan.layers]
        screened = {setting: self._screen(method, setting) for setting in first}
        for pooling in plan.poolings[1:]:
            for best in _best(first, screened):
                setting = Setting(best.layers, pooling, best.width)
                screened[setting] = self._screen(method, setting)
        best = _best(list(screened), screened)[0]
        for width in plan.widths[1:]:
            setting = Setting(best.layers, best.pooling, width)
            screened[setting] = self._screen(method, setting)
        best = _best(list(screened), screened)[0]
        areas = {setting.name: round(100 * area, 2) for setting, area in screened.items()}
        return best, self._search(method, best), areas

    def _screen(self, method: Method, setting: Setting) -> float:
        """Measure a setting on "valid" by a small forest."""

        def compute() -> float:
            task = self._task(method, setting, 0)
            valid = task.problem.part("valid")
            fits = [Fit(task.learner, "valid", SCREENING, seed) for seed in SCREENING_SEEDS]
            fitted = self._workers.map(f"{method.graphs}, {setting.name}", fit, fits, task.to_compare)
            return task.metric(
                task.problem.Y[valid], np.mean([scores for scores, _ in fitted], axis=0), task.learner.threshold
            )

        result: float = self._step(
            f"{method.graphs}-{setting.name}-screen", compute, forest=SCREENING, seeds=list(SCREENING_SEEDS)
        )
        return result

    def _search(self, method: Method, setting: Setting) -> Candidate:
        """Find the candidate of the grid of forests that does best on "valid"."""

        def compare() -> dict[str, Any]:
            task = self._task(method, setting, 0)
            groups = task.learner.groups()
            few = [[each for each in group if each["n_estimators"] <= FEW_TREES] for group in groups]
            tried = self._measured(task, few, f"{method.graphs}, {setting.name}, sizes")
            best = max(range(len(groups)), key=lambda i: max(score for _, score in tried[i]))
            return {"tried": tried, "best": best}

        def extend() -> dict[str, Any]:
            task = self._task(method, setting, 0)
            (tried,) = self._measured(task, [task.learner.groups()[best]], f"{method.graphs}, {setting.name}, trees")
            return {"tried": tried, "chosen": max(tried, key=lambda each: each[1])[0]}

        name = f"{method.graphs}-{setting.name}"
        best = self._step(f"{name}-sizes", compare, trees=FEW_TREES)["best"]
        found: Candidate = self._step(f"{name}-trees", extend, group=best)["chosen"]
        return found

    def _measured(
        self, task: "_Task", groups: Sequence[Sequence[Candidate]], step: str
    ) -> list[list[tuple[Candidate, float]]]:
        """Measure the candidates of some groups on "valid"."""
        searches = [Search(task.learner, "valid", group, 0, (task.metric.name,)) for group in groups]
        found = self._workers.map(step, search, searches, task.to_compare)
        return [
            [(candidate, mean_over_tasks(values[0])) for candidate, values in zip(group, of_group.values, strict=True)]
            for group, of_group in zip(groups, found, strict=True)
        ]

    def _with_seeds(self, method: Method, setting: Setting, candidate: Candidate) -> Iterator[tuple[Values, Values]]:
        """Measure the chosen candidate with one seed of the classifier after another, on "valid" and on "test"."""
        results = []
        for some in _in_turn(self._plan.seeds, SEARCHES_AT_A_TIME if method.model == "automl" else 1):

            def compute(some: Sequence[int] = some) -> list[list[float]]:
                task = self._task(method, setting, 0)
                return [task.measure(scores) for scores in self._scores(method, task, candidate, some)]

            name = f"{method.graphs}-{setting.name}-{method.model}-{some[0]}"
            results += self._fitted(method, name, compute, candidate=candidate, seeds=some)
            valid, test = 100 * np.array(results).T
            yield valid, test

    def _with_embedding_seeds(self, row: Row, method: Method, setting: Setting) -> Iterator[Row]:
        """Measure the chosen candidate on one seed's embeddings after another; and the mean of its scores on all."""
        results, scores = [], []
        labels = self._task(method, setting, 0)
        for seed in range(self._plan.embedding_seeds):

            def compute(seed: int = seed) -> dict[str, Any]:
                task = self._task(method, setting, seed)
                (found,) = self._scores(method, task, row.candidate, [0])
                return {"measured": task.measure(found), "scores": np.round(found[:, 0], 6).tolist()}

            name = f"{method.graphs}-{setting.name}-{'automl-' if method.model == 'automl' else ''}embedding-{seed}"
            step = self._fitted(method, name, compute, candidate=row.candidate)
            results.append(step["measured"])
            scores.append(step["scores"])
            together = labels.measure(np.mean(scores, axis=0)[:, None])
            valid, test = 100 * np.array(results).T
            found = {"embedding_valid": valid, "embedding_test": test, "how": self._how(method)}
            yield Row(**{**vars(row), **found, "together": {"valid": 100 * together[0], "test": 100 * together[1]}})

    def _how(self, method: Method) -> dict[str, Any]:
        return {"time_budget": self._plan.time_budget if method.model == "automl" else None, **self._ledger.how()}

    def _scores(self, method: Method, task: "_Task", candidate: Candidate, seeds: Sequence[int]) -> list[FloatMatrix]:
        """Fit a candidate to "train" with some seeds, and score "valid" and "test", one after the other."""
        learner, problem = task.learner, task.problem
        if method.model == "automl":
            learner = make_learner(method.model, problem, metric=task.metric.name, time_budget=self._plan.time_budget)
        else:
            candidate = {**candidate, "n_jobs": self._plan.threads}
        step = f"{method.title}, seeds {', '.join(map(str, seeds))}"
        return score_split(problem, learner, candidate, self._workers, seeds=seeds, step=step)

    def _task(self, method: Method, setting: Setting, seed: int) -> "_Task":
        """Embed the molecules, unless that was done."""
        nodes = {**method.tables["nodes"], "atom_embedding_width": setting.width}
        diffusion = {"layers": setting.layers, "pooling": setting.pooling}
        values = {**method.tables, "nodes": nodes, "diffusion": diffusion, "seed": seed}
        problem = Problem.of(self._data_set.embed(f"{method.graphs}-{setting.name}-{seed}", values))
        metric = choose_metric(problem.kind, "split", None)
        require_measurable(problem, metric)
        return _Task(problem, make_learner("random-forest", problem, metric=metric.name, time_budget=1.0), metric)

    def _fitted(self, method: Method, name: str, compute: Callable[[], Any], **settings: Any) -> Any:
        """Make a step of fits of the chosen candidate, or of searches of the AutoML library."""
        if method.model != "automl":
            return self._step(name, compute, **settings)
        return self._step(name, compute, packages=AUTOML_PACKAGES, time_budget=self._plan.time_budget, **settings)

    def _step(
        self, name: str, compute: Callable[[], Any], *, packages: Sequence[str] = PACKAGES, **settings: Any
    ) -> Any:
        def compute_it() -> Any:
            self._is_new = True
            return compute()

        settings |= {"fits_version": FITS_VERSION, "numerics_version": NUMERICS_VERSION}
        settings |= {"data": self._data_set.fingerprint}
        return self._ledger.step(f"molhiv-{name}", settings, compute_it, packages=packages, workers=self._workers)


@dataclass(frozen=True)
class _Task:
    """Embeddings, forests and the metric."""

    problem: Problem
    learner: Learner
    metric: Metric

    @property
    def to_compare(self) -> tuple[Any, ...]:
        """What fits share that are compared on "valid"."""
        valid = Fold(self.problem.part("train"), self.problem.part("valid"))
        return {"valid": valid}, self.problem.Y, self.problem.X

    def measure(self, scores: FloatMatrix) -> list[float]:
        """Measure scores of "valid" and "test", one after the other."""
        return measure_split(self.problem, self.learner, self.metric, scores)


def _in_turn(n_seeds: int, at_a_time: int) -> list[list[int]]:
    """Cut seeds into steps.

    Examples
    --------
    >>> _in_turn(3, 2)
    [[0, 1], [2]]
    """
    seeds = list(range(n_seeds))
    return [seeds[start : start + at_a_time] for start in range(0, n_seeds, at_a_time)]


def _best(settings: Sequence[Setting], screened: Mapping[Setting, float]) -> list[Setting]:
    """Find the `N_BEST` settings that did best; of equals the first."""
    return sorted(settings, key=lambda setting: -screened[setting])[:N_BEST]
