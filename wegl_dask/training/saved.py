"""Trained models on storage: skops files, which hold no code to run."""

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.imports import kept_away
from wegl_dask.training.names import MODEL_FILE, MODEL_NAMES, training_folder

# skops walks through all of scikit-learn, and imports it with a part that is there for its arrays.
with kept_away("torch"):
    import skops.io

TRUSTED_TYPES = frozenset(
    {
        "collections.OrderedDict",
        "lightgbm.basic.Booster",
        "lightgbm.sklearn.LGBMClassifier",
        "lightgbm.sklearn.LGBMRegressor",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.tree._tree.Tree",
        "wegl_dask.training.targets.StandardisedRegressor",
    }
)
"""Classes that the models are made of and skops asks about. They hold numbers and text."""


_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, MemoryError, RuntimeError),
    *(AttributeError, ImportError, LookupError, TypeError, ValueError),
)
"""What reading a file raises that is cut off, altered or of another kind."""


def encode_estimators(estimators: dict[str, Any]) -> bytes:
    """Encode fitted estimators, by the name of their task."""
    content: bytes = skops.io.dumps(estimators)
    return content


def load_estimators(
    run: str | os.PathLike[str], model: str, *, storage_options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read the estimators that were trained on a run.

    Parameters
    ----------
    run : str or path-like
        The run folder: a path or any fsspec URL.
    model : str
        Such as ``"random-forest"``.
    storage_options : mapping, optional
        Arguments for the file system.

    Returns
    -------
    dict of str to estimator
        One a task, by the task's name; with one label there is one, under the name ``"label"``. They predict from rows of
        ``wegl_dask.read_embeddings(run).X``.

    Raises
    ------
    WeglError
        If there is no such file, it is damaged, or it holds anything but estimators of this package's models.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> fitted = Ridge(alpha=0.0).fit([[0.0], [1.0]], [0.0, 2.0])
    >>> size = Folder("memory://saved").write("train/ridge/model.skops", encode_estimators({"label": fitted}))
    >>> load_estimators("memory://saved", "ridge")["label"].predict([[0.5]]).round(1).tolist()
    [1.0]
    """
    folder = Folder(os.fspath(run), storage_options or {})
    name = f"{training_folder(model)}/{MODEL_FILE}"
    content = folder.read_if_there(name)
    if content is None:
        there = [each for each in MODEL_NAMES if MODEL_FILE in folder.listing(training_folder(each))]
        listed = ", ".join(there)
        raise WeglError(
            f"{folder.location()} has no trained model {model!r}; there {f'are {listed}' if there else 'is none'}: train it with  "
            "wegl-dask train"
        )
    with _damage_explained(folder.location(name)):
        strangers = set(skops.io.get_untrusted_types(data=content)) - TRUSTED_TYPES
    if strangers:
        raise WeglError(
            f"{folder.location(name)} holds objects of {', '.join(sorted(strangers))}, which no model of this package has: "
            "it was not loaded. Train the model again"
        )
    with _damage_explained(folder.location(name)):
        estimators: dict[str, Any] = skops.io.loads(content, trusted=sorted(TRUSTED_TYPES))
    return estimators


@contextlib.contextmanager
def _damage_explained(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise WeglError(f"{where} is damaged: {error}. Train the model again") from error
