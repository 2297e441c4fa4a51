"""pyarrow without pandas, which takes a quarter of a second to import in every process, and which no graph needs."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa


class _Refusal(MetaPathFinder):
    """Says of pandas that it is not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname} is kept from pyarrow", name=fullname)


def spare_pandas() -> None:
    """Let pyarrow take it that pandas is not installed, unless it has been imported before.

    pyarrow imports it as soon as it converts anything, in case that it is given a Series. What needs pandas, such as
    `pyarrow.Table.to_pandas`, still gets it.
    """
    if "pandas" in sys.modules:
        return
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(refusal)


def dask_setup(worker: object) -> None:
    """Do so in a worker that preloads this module."""
    del worker
    spare_pandas()
