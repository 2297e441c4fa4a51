"""The inputs a job can read, one module a kind, behind one protocol; see `wegl_dask.sources.base`."""

from importlib import import_module
from importlib.util import find_spec

from wegl_dask.errors import MissingDependencyError
from wegl_dask.sources.base import Source
from wegl_dask.spec import SourceTable

_CLASSES = {
    "tud": ("tud", "TudSource"),
    "ogb": ("ogb", "OgbSource"),
    "smiles": ("smiles", "SmilesSource"),
    "sdf": ("sdf", "SdfSource"),
    "pyg": ("pyg", "PygSource"),
    "networkx": ("networkx", "NetworkxSource"),
    "graph_parquet": ("graph_parquet", "GraphParquetSource"),
}

_PACKAGES = {
    "smiles": {"rdkit": "molecules"},
    "sdf": {"rdkit": "molecules"},
    "pyg": {"torch-geometric": "datasets"},
    "networkx": {"networkx": "datasets"},
}
"""Of a kind that needs more than this package does, what reads it, and the extra that it comes with."""


def reading_packages(table: SourceTable) -> tuple[str, ...]:
    """Name the optional packages that the graphs of a source follow from."""
    return tuple(_PACKAGES.get(_kind(table), ()))


def require_reading_packages(table: SourceTable) -> None:
    """Raise `MissingDependencyError` if one of `reading_packages` is not installed; none is imported."""
    for package, extra in _PACKAGES.get(_kind(table), {}).items():
        if find_spec(package.replace("-", "_")) is None:
            raise MissingDependencyError.for_extra(package, extra)


def open_source(table: SourceTable, task: str) -> Source:
    """Make the source that a job's table ``[source]`` describes; only its own module is imported.

    Parameters
    ----------
    table : SourceTable
        One of the tables of `wegl_dask.spec`, by its ``kind``.
    task : str
        What the labels are, as in the job file.
    """
    module, name = _CLASSES[_kind(table)]
    source: Source = getattr(import_module(f"wegl_dask.sources.{module}"), name)(table, task)
    return source


def _kind(table: SourceTable) -> str:
    return str(getattr(table, "kind"))  # noqa: B009  every table but the common base has a kind
