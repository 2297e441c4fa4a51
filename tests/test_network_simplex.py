import subprocess
import sys

import numpy as np
import pytest

from wegl_dask import network_simplex as module
from wegl_dask.errors import MissingDependencyError, WeglError
from wegl_dask.network_simplex import OPTIMAL, network_simplex


def run_python(code):
    """Run code in a process of its own, which has imported nothing yet."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.split()


def test_the_solver_solves():
    plan, cost, *_, code = network_simplex()(np.array([1.0]), np.array([0.25, 0.75]), np.array([[2.0, 4.0]]), 1000, 1)
    assert code == OPTIMAL
    np.testing.assert_array_equal(plan, [[0.25, 0.75]])
    assert cost == pytest.approx(3.5)


def test_loading_it_imports_neither_pot_nor_what_pot_imports():
    code = """
import sys
from wegl_dask.network_simplex import network_simplex
network_simplex()
print(*sorted({"ot", "sklearn", "pandas", "torch", "jax"} & {name.partition(".")[0] for name in sys.modules}), "end")
"""
    assert run_python(code) == ["end"]


def test_pot_can_be_imported_afterwards_and_is_whole():
    code = """
import os
from wegl_dask.network_simplex import network_simplex
solve = network_simplex()
os.environ.update(POT_BACKEND_DISABLE_PYTORCH="1", POT_BACKEND_DISABLE_JAX="1", POT_BACKEND_DISABLE_TENSORFLOW="1")
import ot
print(ot.lp.emd_wrap.emd_c is solve, *ot.emd([0.5, 0.5], [0.5, 0.5], [[0, 1], [1, 0]])[0])
"""
    assert run_python(code) == ["True", "0.5", "0.0"]


def test_pot_that_is_imported_already_is_taken_as_it_is():
    code = """
import os
os.environ.update(POT_BACKEND_DISABLE_PYTORCH="1", POT_BACKEND_DISABLE_JAX="1", POT_BACKEND_DISABLE_TENSORFLOW="1")
import sys
from ot.lp.emd_wrap import emd_c
from wegl_dask.network_simplex import network_simplex
print(network_simplex() is emd_c, "wegl_dask._pot" in sys.modules)
"""
    assert run_python(code) == ["True", "False"]


@pytest.fixture
def _loaded_anew():
    network_simplex.cache_clear()
    yield
    network_simplex.cache_clear()


@pytest.mark.usefixtures("_loaded_anew")
def test_a_solver_that_cannot_be_loaded_alone_is_loaded_with_pot_and_the_log_says_so(monkeypatch, caplog):
    def fail():
        raise ImportError("the file has moved")

    monkeypatch.setattr(module, "_load_alone", fail)
    monkeypatch.delitem(sys.modules, "ot", raising=False)
    monkeypatch.setattr(module, "_load_with_pot", lambda: lambda *_: (EXPECTED, 0, 0, 0, OPTIMAL))
    assert network_simplex()() == (EXPECTED, 0, 0, 0, OPTIMAL)
    assert "the file has moved" in caplog.text


EXPECTED = [[0.25, 0.25, 0.0], [0.0, 0.25, 0.25]]


@pytest.mark.usefixtures("_loaded_anew")
@pytest.mark.parametrize(
    "other",
    [
        lambda a, b, costs: None,  # noqa: ARG005
        lambda *_: (EXPECTED, 0, 0, OPTIMAL),
        lambda *_: (EXPECTED, 0, 0, 0, 3),
        lambda *_: (np.zeros((2, 3)), 0, 0, 0, OPTIMAL),
    ],
    ids=["other arguments", "other results", "other code", "other plan"],
)
def test_a_solver_that_does_something_else_is_refused(monkeypatch, other):
    monkeypatch.setattr(module, "_load_alone", lambda: other)
    monkeypatch.setattr(module, "_load_with_pot", lambda: other)
    with pytest.raises(WeglError, match="does not do what this package relies on"):
        network_simplex()


@pytest.mark.usefixtures("_loaded_anew")
def test_without_pot_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        network_simplex()
