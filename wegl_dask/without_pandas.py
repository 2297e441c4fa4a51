"""pyarrow without pandas, which takes a quarter of a second to import in every process, and which no graph needs."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa


class Refusal(MetaPathFinder):
    """Says of a package, where it stands first in `sys.meta_path`, that it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError for it; let others be found elsewhere."""
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is kept from being imported", name=fullname)


def spare_pandas() -> None:
    """Let pyarrow take it that pandas is not installed, unless it has been imported before.

    pyarrow imports it as soon as it converts anything, in case that it is given a Series. What needs pandas, such as
    `pyarrow.Table.to_pandas`, still gets it.
    """
    if "pandas" in sys.modules:
        return
    refusal = Refusal("pandas")
    sys.meta_path.insert(0, refusal)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(refusal)


def dask_setup(worker: object) -> None:
    """Do so in a worker that preloads this module."""
    del worker
    spare_pandas()
