"""The run that the README begins with, for the tests and for the examples of docstrings, which read it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """Run the quickstart job once, by the command, in a folder of its own: `folder`, `stdout` and `stderr`."""
    pytest.importorskip("rdkit")
    repository = Path(__file__).parent
    folder = tmp_path_factory.mktemp("quickstart")
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-m", "wegl_dask", "run", str(repository / "jobs" / "quickstart.toml")]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=folder, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(autouse=True)
def _beside_the_quickstart(request, monkeypatch):
    """Run an example that reads runs/quickstart where that is."""
    example = getattr(request.node, "dtest", None)
    if example is not None and "runs/quickstart" in (example.docstring or ""):
        monkeypatch.chdir(request.getfixturevalue("quickstart").folder)
