import json

import numpy as np
import pytest

from wegl_dask.folders import Folder
from wegl_dask.locks import locked
from wegl_dask.reproduce import ledger as ledger_module
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.training.fits import Measured, Search
from wegl_dask.training.spreading import Workers
from wegl_dask.training.trees import RandomForest


@pytest.fixture
def calls():
    return []


def counted(calls, value):
    def compute():
        calls.append(value)
        return value

    return compute


def test_a_step_that_is_done_is_not_computed_again(tmp_path, calls):
    for _ in range(2):
        # Another process, later.
        ledger = Ledger(Folder(str(tmp_path)))
        assert ledger.step("one", {"seed": 1}, counted(calls, {"x": (1, 2)})) == {"x": [1, 2]}
    assert len(calls) == 1


def test_a_step_with_other_settings_is_computed_anew(tmp_path, calls):
    ledger = Ledger(Folder(str(tmp_path)))
    for seed in (1, 2, 2):
        assert ledger.step("one", {"seed": seed}, counted(calls, seed)) == seed
    assert calls == [1, 2]


def test_a_step_that_was_cut_off_leaves_nothing(tmp_path, calls):
    ledger = Ledger(Folder(str(tmp_path)))

    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.step("one", {}, stopped)
    assert ledger.step("one", {}, counted(calls, 3)) == 3


def test_a_step_that_was_stopped_goes_on_with_the_fits_that_were_done(tmp_path):
    folder, fitted = Folder(str(tmp_path)), []

    def fit(task, stop_at):
        if task.fold == stop_at:
            raise KeyboardInterrupt
        fitted.append(task.fold)
        return Measured(np.full((1, 1, 1), task.fold / 3), np.empty((0, 1)))

    def step(settings, stop_at=None):
        workers = Workers(1)
        tasks = [Search(RandomForest("binary", 2), fold, [{"n_estimators": 3}], 0, ("accuracy",)) for fold in range(4)]

        def compute():
            return [float(found.values.mean()) for found in workers.map("search", fit, tasks, (stop_at,))]

        with locked(folder) as lock:
            return Ledger(folder, lock).step("one", settings, compute, workers=workers)

    with pytest.raises(KeyboardInterrupt):
        step({"data": 1}, stop_at=2)
    assert fitted == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        step({"data": 2}, stop_at=1)
    assert fitted == [0, 1, 0]
    assert step({"data": 1}) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert fitted == [0, 1, 0, 2, 3]
    assert [*folder.listing("steps")] == ["one.json"]


def test_steps_with_other_settings_lie_beside_one_another(tmp_path, calls):
    for seed in (0, 1, 2, 0, 1, 2):
        ledger = Ledger(Folder(str(tmp_path)))
        assert ledger.step("one", {"seed": seed}, counted(calls, seed)) == seed
    assert calls == [0, 1, 2]
    # The first has the name itself, as it had when there was one alone.
    assert len(list((tmp_path / "steps").glob("one*.json"))) == 3
    assert json.loads((tmp_path / "steps" / "one.json").read_text())["settings"] == {"seed": 0}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"[]", b"null", b"3", b"\xff", b"[" * 100_000, b'{"settings": {}, "how": {}}', b'{"result": 3}'],
)
def test_a_step_that_cannot_be_read_is_computed_again(content, tmp_path, calls):
    ledger = Ledger(Folder(str(tmp_path)))
    ledger.step("one", {}, counted(calls, 3))
    (tmp_path / "steps" / "one.json").write_bytes(content)
    for _ in range(2):
        assert ledger.step("one", {}, counted(calls, 3)) == 3
    assert calls == [3, 3]
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["one.json"]


@pytest.mark.parametrize("key", ["settings", "result", "how"])
def test_a_step_that_was_altered_is_computed_again(key, tmp_path, calls):
    ledger = Ledger(Folder(str(tmp_path)))
    ledger.step("one", {}, counted(calls, 3))
    path = tmp_path / "steps" / "one.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: None}))
    assert ledger.step("one", {}, counted(calls, 3)) == 3
    assert calls == [3, 3]


def test_a_step_keeps_when_and_with_what_it_was_computed(tmp_path, calls, monkeypatch):
    def computed_on(date):
        monkeypatch.setattr(
            ledger_module, "provenance", lambda packages: {"date": date, "versions": {"of": packages[0]}}
        )

    folder = Folder(str(tmp_path))
    computed_on("2020-01-01")
    Ledger(folder).step("one", {}, counted(calls, 1), packages=["numpy"])
    computed_on("2020-01-02")
    later = Ledger(folder)
    later.step("one", {}, counted(calls, 1), packages=["scipy"])
    assert later.how() == {"date": "2020-01-01", "versions": {"of": "numpy"}}
    later.step("two", {}, counted(calls, 2), packages=["scipy"])
    both = {
        "date": "2020-01-02",
        "versions": {"of": "scipy"},
        "earlier": [{"date": "2020-01-01", "versions": {"of": "numpy"}}],
    }
    assert later.how() == both
    # Those of another result are its own.
    fresh = later.fresh()
    fresh.step("two", {}, counted(calls, 2), packages=["scipy"])
    assert fresh.how() == {"date": "2020-01-02", "versions": {"of": "scipy"}}
