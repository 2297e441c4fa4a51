"""POT's compiled network simplex, without the packages that ``import ot`` brings along.

``import ot`` imports scikit-learn, pandas and SciPy's statistics, and every array library that is installed: a second
and 80 MB a process, of which the solver uses nothing. So its extension module is loaded by itself, under a package
name of our own; ``ot`` stays as it is for everybody else in the process.
"""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from wegl_dask.errors import MissingDependencyError, WeglError

NetworkSimplex = Callable[..., Any]
"""``(a, b, costs, max_iterations, threads) -> (plan, cost, dual_a, dual_b, code)``: POT's ``emd_c``."""

OPTIMAL = 1
"""Result code for a plan that is optimal."""

_PACKAGE = "wegl_dask._pot"
_BACKENDS = ("PYTORCH", "JAX", "CUPY", "TENSORFLOW")

_log = logging.getLogger(__name__)


@cache
def network_simplex() -> NetworkSimplex:
    """Load the solver, and try it on a problem whose answer is known.

    Raises
    ------
    MissingDependencyError
        If POT is not installed.
    WeglError
        If the solver is not the one that this package was written for.
    """
    if find_spec("ot") is None:
        raise MissingDependencyError("POT is needed here and is not installed: run  pip install POT")
    try:
        solve: NetworkSimplex = _load_alone() if "ot" not in sys.modules else _load_with_pot()
    except (ImportError, AttributeError) as error:
        _log.warning("POT's solver cannot be loaded by itself (%s): POT is imported as a whole, which is slow", error)
        solve = _load_with_pot()
    _try_out(solve)
    return solve


def _load_with_pot() -> NetworkSimplex:
    from ot.lp.emd_wrap import emd_c  # noqa: PLC0415

    solve: NetworkSimplex = emd_c
    return solve


def _load_alone() -> NetworkSimplex:
    spec = find_spec("ot")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("ot is no package")
    (root, *_) = spec.submodule_search_locations
    # The extension imports POT's module of helpers by its relative name, and finds it in the package it is loaded from.
    for name, folder in ((_PACKAGE, root), (f"{_PACKAGE}.lp", os.path.join(root, "lp"))):  # noqa: PTH118
        package = ModuleType(name, f"Stands for {folder}.")
        package.__path__ = [folder]
        sys.modules[name] = package
    with _backends_disabled():
        solve: NetworkSimplex = importlib.import_module(f"{_PACKAGE}.lp.emd_wrap").emd_c
    # The extension also enters itself under its own name, as if ``ot.lp`` had imported it.
    sys.modules.pop("ot.lp.emd_wrap", None)
    return solve


@contextmanager
def _backends_disabled() -> Iterator[None]:
    """Keep POT's helpers from importing array libraries that are not used here."""
    added = [name for backend in _BACKENDS if (name := f"POT_BACKEND_DISABLE_{backend}") not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _try_out(solve: NetworkSimplex) -> None:
    costs = np.array([[0.0, 1.0, 9.0], [4.0, 1.0, 0.5]])
    expected = np.array([[0.25, 0.25, 0.0], [0.0, 0.25, 0.25]])
    try:
        plan, _, _, _, code = solve(np.array([0.5, 0.5]), np.array([0.25, 0.5, 0.25]), costs, 1000, 1)
        as_expected = code == OPTIMAL and np.allclose(plan, expected, atol=1e-12)
    except (TypeError, ValueError) as error:
        raise _not_as_expected() from error
    if not as_expected:
        raise _not_as_expected()


def _not_as_expected() -> WeglError:
    return WeglError(
        f"the solver of POT {version('POT')} does not do what this package relies on: run  pip install 'POT>=0.9.5,<0.10'"
    )
