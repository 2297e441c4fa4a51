"""How modules are imported where it matters how long that takes."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType


class Refusal(MetaPathFinder):
    """Says of a package, where it stands first in `sys.meta_path`, that it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError for it; let others be found elsewhere."""
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is kept from being imported", name=fullname)


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without looking for cycles among modules, which stay: that would take a sixth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
