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


OF_THE_MACHINE = (
    "no benchmark data at",
    "only root can",
    "root reads everything",
    "this sandbox does not allow namespaces",
    "this machine makes no network namespaces",
    "a folder that root cannot write in is one of /sys",
    "there is a GPU",
    "SCIPY_ARRAY_API is not set",
)
"""What tests say that were skipped for want of what nobody can install: data, rights, a system.

The last is a check of scikit-learn's, of estimators that compute with other libraries' arrays.
"""


def pytest_sessionfinish(session):
    """Fail where something is not installed that a test needs, if WEGL_ALL_INSTALLED says that all is."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("WEGL_ALL_INSTALLED"):
        return
    skipped = [report.longrepr[2] for report in reporter.stats.get("skipped", [])]
    missing = sorted({reason for reason in skipped if not any(each in reason for each in OF_THE_MACHINE)})
    if missing:
        reporter.write_line(f"\nWEGL_ALL_INSTALLED is set, and tests were skipped: {'; '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
