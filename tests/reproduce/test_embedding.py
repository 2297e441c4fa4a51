import shutil

import pytest

from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.reproduce.embedding import DataSet
from wegl_dask.storage import RunFolder

JOB = """
name = "mutag"
task = "classification"
[source]
kind = "tud"
root = "elsewhere"
name = "MUTAG"
download = false
[nodes]
features = ["labels"]
[edges]
features = "labels"
[output]
path = "elsewhere"
"""
CHANGES = {"diffusion": {"layers": 3, "pooling": "final"}}


@pytest.fixture
def open_set(dask_client):
    return lambda root, out: DataSet("MUTAG", JOB, str(root), str(out), dask_client)


def test_the_fingerprint_is_that_of_graphs_and_labels_wherever_they_lie(write_tud, open_set, tmp_path):
    one = open_set(write_tud(tmp_path / "one", "MUTAG"), tmp_path / "out")
    moved = open_set(write_tud(tmp_path / "moved", "MUTAG"), tmp_path / "out-moved")
    other = open_set(write_tud(tmp_path / "other", "MUTAG", swapped=True), tmp_path / "out-other")
    assert one.fingerprint == moved.fingerprint != other.fingerprint
    assert open_set(tmp_path / "one", tmp_path / "out").fingerprint == one.fingerprint


def test_the_fingerprint_is_that_of_the_job_file_too(write_tud, dask_client, tmp_path):
    root = str(write_tud(tmp_path / "data", "MUTAG"))
    jobs = [JOB, JOB.replace("[output]", "[output]\nkeep_graphs = true"), JOB + "[projection]\nstandardize = false\n"]
    sets = [DataSet("MUTAG", job, root, str(tmp_path / str(i)), dask_client) for i, job in enumerate(jobs)]
    first, other_output, other_vectors = [each.fingerprint for each in sets]
    assert first == other_output != other_vectors


@pytest.mark.parametrize("name", ['a "quote"', "back\\slash", "it's", "tabs\tand # signs"])
def test_folders_have_any_name(name, write_tud, open_set, tmp_path):
    data_set = open_set(write_tud(tmp_path / name / "data", "MUTAG"), tmp_path / name / "out")
    assert data_set.embed("final-3", CHANGES).X.shape[0] == 24
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert sorted(path.name for path in (tmp_path / name / "out").iterdir()) == ["graphs", "runs"]


def test_data_from_another_folder_are_refused_with_what_can_be_done(write_tud, open_set, tmp_path):
    one, other = write_tud(tmp_path / "one", "MUTAG"), write_tud(tmp_path / "other", "MUTAG", swapped=True)
    out = tmp_path / "out"
    open_set(one, out).embed("final-3", CHANGES)
    with pytest.raises(JobFileError, match=rf"{one}.* and now --data is {other}.* remove {out}/graphs/MUTAG;.* by -o"):
        open_set(other, out)
    # As the message says.
    shutil.rmtree(out / "graphs" / "MUTAG")
    data_set = open_set(other, out)
    with pytest.raises(JobFileError, match=rf"another folder by -o, or remove {out}/runs/MUTAG-final-3") as caught:
        data_set.embed("final-3", CHANGES)
    assert "--overwrite" not in str(caught.value)
    shutil.rmtree(out / "runs" / "MUTAG-final-3")
    assert data_set.embed("final-3", CHANGES).rows["label"].to_pylist()[:2] == [1, 1]


def test_data_that_have_changed_are_refused_with_what_can_be_done(write_tud, open_set, tmp_path):
    data = write_tud(tmp_path / "data", "MUTAG")
    open_set(data, tmp_path / "out")
    shutil.rmtree(data)
    write_tud(data, "MUTAG", swapped=True)
    with pytest.raises(JobFileError, match=r"the input has changed .* by -o, or remove") as caught:
        open_set(data, tmp_path / "out")
    assert "--overwrite" not in str(caught.value)


def test_a_folder_without_the_data_blocks_nothing(write_tud, open_set, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeglError, match="MUTAG"):
        open_set(tmp_path / "empty", tmp_path / "out")
    assert open_set(write_tud(tmp_path / "data", "MUTAG"), tmp_path / "out").fingerprint


def test_a_plan_that_is_lost_costs_no_graphs(write_tud, open_set, tmp_path):
    data = write_tud(tmp_path / "data", "MUTAG")
    first = open_set(data, tmp_path / "out")
    graphs = tmp_path / "out" / "graphs" / "MUTAG"
    (graphs / "records" / "plan-00000.json").write_text("{")
    written = (graphs / "graphs" / "part-00000.parquet").stat().st_mtime_ns
    assert open_set(data, tmp_path / "out").fingerprint == first.fingerprint
    assert (graphs / "graphs" / "part-00000.parquet").stat().st_mtime_ns == written


def test_the_same_folder_by_another_path_goes_on(write_tud, open_set, tmp_path, monkeypatch):
    data = write_tud(tmp_path / "data", "MUTAG")
    first = open_set(data, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    again = open_set("data", tmp_path / "out")
    assert again.job == first.job


@pytest.mark.parametrize("content", [None, b"{", b"", b"source = 3"])
def test_a_damaged_job_file_is_one_line(content, write_tud, open_set, tmp_path):
    data = write_tud(tmp_path / "data", "MUTAG")
    open_set(data, tmp_path / "out")
    path = tmp_path / "out" / "graphs" / "MUTAG" / "job.toml"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(JobFileError, match=r"job\.toml is damaged .* or remove"):
        open_set(data, tmp_path / "out")


def test_embeddings_on_a_store_are_removed_too():
    data_set = DataSet.__new__(DataSet)
    data_set._folder, data_set._name = "memory://reproduced", "MUTAG"
    folder = RunFolder(data_set._run("concat-3"))
    folder.claim(JOB)
    assert folder.listing("records")
    data_set.remove("concat-3")
    assert not folder.listing()
    assert not folder.listing("records")
