"""The inputs a job can read, one module a kind, behind one protocol; see `wegl_dask.sources.base`."""

from importlib import import_module

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


def open_source(table: SourceTable, task: str) -> Source:
    """Make the source that a job's table ``[source]`` describes; only its own module is imported.

    Parameters
    ----------
    table : SourceTable
        One of the tables of `wegl_dask.spec`, by its ``kind``.
    task : str
        What the labels are, as in the job file.
    """
    module, name = _CLASSES[getattr(table, "kind")]  # noqa: B009  every table but the common base has a kind
    source: Source = getattr(import_module(f"wegl_dask.sources.{module}"), name)(table, task)
    return source
