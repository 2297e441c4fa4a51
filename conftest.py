"""The run that the README begins with, for the tests and for the examples of docstrings; and what may be skipped."""

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


MISSING = ("could not import", "not found: run", "is not set: run")
"""What tests say that were skipped for want of a package or a program."""


def pytest_sessionfinish(session):
    """Fail where something is not installed that a test needs, if WEGL_ALL_INSTALLED says that all is."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("WEGL_ALL_INSTALLED"):
        return
    skipped = [report.longrepr[2] for report in reporter.stats.get("skipped", [])]
    missing = sorted({reason for reason in skipped if any(each in reason for each in MISSING)})
    if missing:
        reporter.write_line(f"\nWEGL_ALL_INSTALLED is set, and tests were skipped: {'; '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
