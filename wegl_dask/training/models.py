"""The models that can be trained, by name."""

from wegl_dask.errors import JobFileError
from wegl_dask.training.automl import AutoML
from wegl_dask.training.dense import Perceptron, RidgeRegression
from wegl_dask.training.learner import Learner
from wegl_dask.training.names import MetricName, ModelName
from wegl_dask.training.problem import Problem
from wegl_dask.training.svm import SupportVectorMachine
from wegl_dask.training.trees import GradientBoosting, RandomForest


def make_learner(name: ModelName, problem: Problem, *, metric: MetricName, time_budget: float) -> Learner:
    """Make the model of a name for a problem.

    Parameters
    ----------
    name : str
    problem : Problem
    metric : str
        What ``automl`` searches by.
    time_budget : float
        Seconds of a search of ``automl``.

    Raises
    ------
    JobFileError
        If the model is not one for such labels.
    MissingDependencyError
        If a package is missing.
    """
    kind = problem.kind
    n_classes = {"binary": 2, "multiclass": len(problem.class_names), "regression": 0}[kind]
    match name:
        case "random-forest":
            return RandomForest(kind, n_classes)
        case "gradient-boosting":
            return GradientBoosting(kind, n_classes)
        case "svm-linear":
            return SupportVectorMachine(kind, n_classes, "linear")
        case "svm-rbf":
            return SupportVectorMachine(kind, n_classes, "rbf")
        case "mlp":
            return Perceptron(kind, n_classes)
        case "automl":
            return AutoML(kind, n_classes, metric, time_budget)
        case "ridge":
            if kind != "regression":
                # Of several labels, 0 and 1 are always classes.
                advice = "choose svm-linear"
                if not problem.task_names:
                    advice += ' or, if they are targets, embed the graphs with task = "regression" in the job file'
                raise JobFileError(f'train.model = "ridge" is for targets, and the labels are classes: {advice}')
            return RidgeRegression(kind, n_classes)
