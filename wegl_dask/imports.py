"""How modules are imported where it matters how long that takes."""

import gc
import sys
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
def kept_away(name: str) -> Iterator[None]:
    """Let what is imported in the block take it that a package is not installed, unless it has been imported before."""
    if name in sys.modules:
        yield
        return
    refusal = Refusal(name)
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)


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
