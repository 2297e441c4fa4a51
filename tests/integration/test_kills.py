"""Jobs that are killed at moments drawn from a seed, by the harnesses beside this file: nothing is lost or doubled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

AS_IT_SHOULD_BE = {"rows_lost": 0, "rows_doubled": 0, "rounds_with_other_bytes": 0, "problems": []}


@pytest.fixture
def harness(shared_data, tmp_path):
    """Run the harness until so many kills are done: its state."""
    state = tmp_path / "state.json"

    def run(kills, *, graphs, seed=0, program="kill_harness.py", reference="kmeans"):
        arguments = ["--kills", kills, "--graphs", graphs, "--seed", seed, "--state", state, "--data", shared_data]
        arguments += ["--reference", reference]
        command = [sys.executable, str(HERE / program), *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert state.exists(), done.stdout
        found = json.loads(state.read_text())
        assert done.returncode == 0, json.dumps(found["problems"], indent=1)
        assert {key: found[key] for key in AS_IT_SHOULD_BE} == AS_IT_SHOULD_BE
        assert found["kills"] >= kills
        return found

    return run


def test_all_workers_and_later_one_of_them_are_killed_and_nothing_is_lost(harness):
    """Commands that are killed are those of test_resume. Workers import some seconds' worth for k-means, each anew."""
    found = harness(2, graphs=200, seed=6426, reference="sample")
    if not found["missed"]:
        assert found["by_kind"] == {"workers": 1, "worker": 1}
        assert found["by_stage"] == {"ingest": 1, "embed": 1}


@pytest.mark.slow
def test_kills_in_every_stage_by_a_harness_that_is_stopped_and_continued(harness):
    first = harness(30, graphs=1000, seed=1)
    found = harness(80, graphs=1000, seed=1)
    assert found["rounds"] > first["rounds"]
    assert set(found["by_kind"]) == {"worker", "workers", "client", "terminate", "scheduler"}
    assert set(found["by_stage"]) == {
        *("start", "scan", "ingest", "moments", "merge", "projection", "sample", "reference", "embed", "finish")
    }


@pytest.mark.slow
def test_appends_are_killed_while_more_rows_come(harness):
    found = harness(40, graphs=300, seed=1, program="append_harness.py")
    assert set(found["by_kind"]) == {"worker", "workers", "client", "terminate"}
    assert set(found["by_stage"]) == {"start", "known", "ingest", "embed", "finish"}
