"""Whole-graph embeddings by linear optimal transport (WEGL), as a distributed batch job on Dask."""

from importlib import import_module

# That of `typing`, which takes longer to import than all that is needed before the command can be stopped.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from wegl_dask.approximation import Approximation, measure_approximation
    from wegl_dask.errors import WeglError
    from wegl_dask.graphs import GraphBatch, GraphSchema
    from wegl_dask.nearest import neighbours, similar
    from wegl_dask.reading import Embeddings, read_embeddings
    from wegl_dask.training.saved import load_estimators
    from wegl_dask.version import __version__
    from wegl_dask.wegl import WEGL

__all__ = [
    "WEGL",
    "Approximation",
    "Embeddings",
    "GraphBatch",
    "GraphSchema",
    "WeglError",
    "__version__",
    "load_estimators",
    "measure_approximation",
    "neighbours",
    "read_embeddings",
    "similar",
]

_MODULES = {
    "WEGL": "wegl",
    "Approximation": "approximation",
    "Embeddings": "reading",
    "GraphBatch": "graphs",
    "GraphSchema": "graphs",
    "WeglError": "errors",
    "__version__": "version",
    "load_estimators": "training.saved",
    "measure_approximation": "approximation",
    "neighbours": "nearest",
    "read_embeddings": "reading",
    "similar": "nearest",
}


def __getattr__(name: str) -> object:
    """Import what is asked for, and no more: the command would otherwise wait for pyarrow and SciPy."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
