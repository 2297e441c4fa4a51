"""Dask's performance report in the run folder."""

import importlib.util

import pytest

from wegl_dask.errors import MissingDependencyError
from wegl_dask.folders import Folder
from wegl_dask.performance import performance_report


def test_the_report_of_what_ran_is_a_page_in_the_folder(dask_client, tmp_path):
    pytest.importorskip("bokeh")
    with performance_report(Folder(str(tmp_path))):
        dask_client.submit(sum, [1, 2], key="a-task-of-this-test", pure=False).result()
    page = (tmp_path / "performance-report.html").read_text(encoding="utf-8")
    assert page.lstrip().startswith("<!DOCTYPE html>")
    assert "a-task-of-this-test" in page


def test_nothing_is_run_without_the_package_that_draws_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    message = r"bokeh is needed here .* pip install 'wegl-dask\[cluster\]'"
    with pytest.raises(MissingDependencyError, match=message), performance_report(Folder(str(tmp_path))):
        pytest.fail("the block was run")
    assert list(tmp_path.iterdir()) == []
