"""What a job is predicted to need, against what it needs."""

import gzip
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_info, threadpool_limits

from wegl_dask import fit, pipeline, planning, trial
from wegl_dask.cli import main
from wegl_dask.errors import JobFileError
from wegl_dask.ingest import ingest, plan_source
from wegl_dask.planning import TRIED_SHARDS, forecast
from wegl_dask.progress import unshown
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.trial import TrialRun, trial_run, try_shards


@pytest.fixture
def job(shared_data, tmp_path):
    """A job of ENZYMES in about ten shards, with the reference that is found fastest; keys can be changed."""

    def make(**tables):
        values = {
            "source": {
                "kind": "tud",
                "root": str(shared_data / "TUDataset"),
                "name": "ENZYMES",
                "nodes_per_shard": 2000,
            },
            "nodes": {"features": ["labels"], "virtual_node": True},
            "diffusion": {"layers": 2, "pooling": "concat"},
            "reference": {"kind": "sample"},
            "output": {"path": str(tmp_path / "out")},
            "cluster": {"workers": 2, "memory_limit": "1GB"},
        }
        for table, keys in tables.items():
            values[table] = values.get(table, {}) | keys
        return JobSpec.from_values(values)

    return make


def run_whole(spec):
    """Run all stages on all shards in this process: what they needed."""
    with trial_run(spec, unshown) as run:
        plan = plan_source(run)
        shards = [cut.shard for unit in plan.units for cut in unit.cuts]
        run.tried.clear()
        return try_shards(run, plan, shards, lambda _: spec.reference)


def test_a_few_shards_tell_what_the_whole_needs(job):
    spec = job(reference={"kind": "kmeans"})
    predicted, whole = forecast(spec, progress=unshown), run_whole(spec)
    assert predicted.tried == TRIED_SHARDS < predicted.shards == len(whole.census.records)
    assert predicted.graphs == whole.census.total("graphs") == 600
    assert predicted.nodes == pytest.approx(whole.census.total("nodes"), rel=0.1)
    assert predicted.n_points == pytest.approx(whole.fit.n_points, rel=0.1)
    assert predicted.dimension == whole.fit.dimension == 9
    tasks = {stage.name: stage.tasks for stage in predicted.stages}
    for stage in ("ingest", "moments", "merge", "projection", "sample", "reference", "embed"):
        assert tasks[stage] == len(whole.of_stage(stage))
    assert predicted.outputs["data"] == pytest.approx(whole.written("embed"), rel=0.2)
    assert predicted.outputs["graphs"] == pytest.approx(whole.written("ingest"), rel=0.2)
    # The machine may be busy with something else at either time.
    work = {stage.name: stage.work for stage in predicted.stages}
    for stage in ("moments", "embed"):
        assert whole.seconds(stage) / 8 <= work[stage] <= 8 * whole.seconds(stage) + 0.3


@pytest.mark.parametrize("reference", ["kmeans", "barycenter"])
@pytest.mark.parametrize("method", ["exact", "randomized"])
def test_all_that_is_left_in_the_scratch_folder_is_foreseen(job, monkeypatch, method, reference):
    monkeypatch.setattr(planning, "MERGE_FAN_IN", 3)
    monkeypatch.setattr(fit, "MERGE_FAN_IN", 3)
    written = []
    original = RunFolder.written_records

    def note(folder, *arguments):
        found = original(folder, *arguments)
        written.extend((file.path, file.n_bytes) for record in found.values() for file in record.files)
        return found

    projection = {"components": 5, "method": method}
    # So many graphs that the tried shards draw more than their share of nodes.
    spec = job(projection=projection, reference={"kind": reference, "points": 4, "max_nodes": 3000, "graphs": 60})
    predicted = forecast(spec, progress=unshown)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "written_records", note)
        run_whole(spec)
    whole = sum(size for path, size in dict(written).items() if path.startswith("scratch/"))
    assert predicted.outputs["scratch"] == pytest.approx(whole, rel=0.1)


def test_stages_take_the_time_of_their_tasks_shared_by_the_workers(job):
    predicted = forecast(job(), workers=4, progress=unshown)
    assert predicted.workers == 4
    embed = predicted.stages[-1]
    rounds = -(-embed.tasks // 4)
    assert embed.seconds == pytest.approx(rounds * embed.work / embed.tasks + planning.STAGE_SECONDS, abs=0.05)
    assert predicted.seconds == planning.START_SECONDS + sum(stage.seconds for stage in predicted.stages)


@pytest.mark.parametrize(
    ("start_rows", "max_nodes", "points", "drawn"),
    [
        # Four shards of n draw 4 / n of the job's nodes ...
        (1, 2000, 3, lambda shards: -(-2000 * TRIED_SHARDS // shards)),
        # ... but no fewer than k-means begins with, ...
        (900, 2000, 3, lambda _: 900),
        (1, 2000, 40, lambda _: 800),
        # ... and no more than the job may.
        (900, 500, 3, lambda _: 500),
    ],
)
def test_from_the_tried_shards_as_many_nodes_are_drawn_as_the_job_draws(
    job, monkeypatch, start_rows, max_nodes, points, drawn
):
    trials = []
    monkeypatch.setattr(planning, "START_ROWS", start_rows)
    monkeypatch.setattr(planning, "try_shards", lambda *arguments: trials.append(try_shards(*arguments)) or trials[0])
    reference = {"kind": "kmeans", "max_nodes": max_nodes, "points": points}
    predicted = forecast(job(reference=reference), progress=unshown)
    assert predicted.shards > TRIED_SHARDS
    assert trials[0].sampled == drawn(predicted.shards)
    assert predicted.n_points == points


def test_what_is_timed_has_one_thread_as_in_a_worker(job, monkeypatch):
    seen = {}

    def timed(what, function):
        def call(*arguments, **options):
            seen[what] = max(pool["num_threads"] for pool in threadpool_info())
            return function(*arguments, **options)

        return call

    def clusterer(*arguments):
        made = trial_clusterer(*arguments)
        monkeypatch.setattr(made, "partial_fit", timed("k-means", made.partial_fit))
        return made

    trial_clusterer = trial.mini_batch_kmeans
    monkeypatch.setattr(trial, "mini_batch_kmeans", clusterer)
    for stage, name in (("moments", "prepare_fit"), ("reference", "fit_model"), ("embed", "embed")):
        monkeypatch.setattr(trial, name, timed(stage, getattr(trial, name)))
    with threadpool_limits(2):
        forecast(job(reference={"kind": "kmeans"}), progress=unshown)
        assert max(pool["num_threads"] for pool in threadpool_info()) == 2
    assert seen == dict.fromkeys(("moments", "reference", "embed", "k-means"), 1)


def test_many_tasks_take_the_time_of_the_scheduler(job, monkeypatch):
    monkeypatch.setattr(planning, "TASK_SECONDS", 100.0)
    predicted = forecast(job(), workers=4, progress=unshown)
    for stage in predicted.stages:
        assert stage.seconds == pytest.approx(100.0 * stage.tasks + planning.STAGE_SECONDS)


def test_nothing_is_written_where_the_job_will_run(job, tmp_path):
    forecast(job(), progress=unshown)
    assert list(tmp_path.iterdir()) == []


def test_graph_shards_of_an_earlier_run_are_used_and_the_source_is_not_read(job, shared_data, tmp_path):
    copy = tmp_path / "copy" / "ENZYMES"
    shutil.copytree(shared_data / "TUDataset" / "ENZYMES", copy)
    spec = job(source={"root": str(tmp_path / "copy")})
    folder = RunFolder(spec.output.path)
    with folder.lock() as lock:
        folder.claim(spec.to_toml())
        run = TrialRun(spec, folder, lock, None, resumed=False, progress=unshown)
        ingest(run, plan_source(run))
    shutil.rmtree(copy)
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    predicted = forecast(spec, progress=unshown)
    assert predicted.graphs == 600
    assert predicted.stages[0].name == "moments"
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before


def test_the_shards_of_another_job_are_not_used(job, tmp_path):
    folder = RunFolder(str(tmp_path / "out"))
    with folder.lock() as lock:
        spec = job(source={"nodes_per_shard": 5000})
        folder.claim(spec.to_toml())
        run = TrialRun(spec, folder, lock, None, resumed=False, progress=unshown)
        ingest(run, plan_source(run))
    assert [stage.name for stage in forecast(job(), progress=unshown).stages][:2] == ["scan", "ingest"]


def test_a_stream_is_timed_by_its_first_shard(job, shared_data, tmp_path):
    shutil.make_archive(str(tmp_path / "zip" / "ENZYMES"), "zip", shared_data / "TUDataset", "ENZYMES")
    predicted = forecast(job(source={"root": str(tmp_path / "zip")}), progress=unshown)
    tasks = {stage.name: stage for stage in predicted.stages}
    assert tasks["ingest"].tasks == 1
    assert tasks["moments"].tasks == predicted.shards > TRIED_SHARDS
    assert predicted.graphs == 600


@pytest.mark.parametrize(("workers", "tasks"), [(1, 1), (3, 3), (10, 6)])
def test_a_compressed_file_of_molecules_is_divided_among_the_workers(tmp_path, workers, tasks):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"smiles\n" + b"CCCCC(=O)NCO\n" * 600 + b"CCNCCl\n" * 600))
    source = {"kind": "smiles", "path": str(path), "nodes_per_shard": 1060}
    values = {"source": source, "output": {"path": str(tmp_path / "out")}, "projection": {"components": 2}}
    spec = JobSpec.from_values(values | {"reference": {"kind": "sample", "points": 4}})
    predicted = forecast(spec, workers=workers, progress=unshown)
    ingest = next(stage for stage in predicted.stages if stage.name == "ingest")
    assert predicted.shards == 6
    assert ingest.tasks == tasks
    assert ingest.seconds == pytest.approx(ingest.work / tasks + planning.STAGE_SECONDS)


def test_more_memory_than_a_worker_has_is_refused_with_both_numbers(job):
    predicted = forecast(job(cluster={"memory_limit": "600MB"}), progress=unshown)
    predicted.require_fitting("memory://anywhere")
    terms = {**predicted.terms, "embed": {"the vectors of a shard": 900_000_000}}
    heavy = replace(predicted, terms=terms)
    with pytest.raises(JobFileError, match=r"the stage embed needs about 1 GB .* and a worker has 600 MB"):
        heavy.require_fitting("memory://anywhere")


def test_what_k_means_imports_counts_in_every_stage_that_its_worker_may_do(job):
    with_kmeans, without = (forecast(job(reference={"kind": kind}), progress=unshown) for kind in ("kmeans", "sample"))
    by_name = {stage.name: stage.peak_bytes for stage in without.stages}
    for stage in with_kmeans.stages:
        if stage.name in {"moments", "projection", "sample", "embed"}:
            assert stage.peak_bytes - by_name[stage.name] == pytest.approx(120e6, rel=0.02), stage.name


def test_more_disk_than_is_free_is_refused_with_both_numbers(job, tmp_path, monkeypatch):
    predicted = forecast(job(), progress=unshown)
    predicted.require_fitting(str(tmp_path / "a" / "b"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(JobFileError, match=r"needs about .*B of disk, and .* has 1 kB"):
        predicted.require_fitting(str(tmp_path / "a" / "b"))


def test_a_run_refuses_what_its_workers_cannot_hold(job, dask_client, monkeypatch):
    monkeypatch.setattr(pipeline, "memory_needed", lambda *_: {"sample": {"the points of a shard": 3e9}})
    with pytest.raises(JobFileError, match=r"the stage sample needs about 3\.15 GB .* and a worker has 2 GB"):
        pipeline.run_job(job(), dask_client, progress=unshown)


def test_for_an_existing_scheduler_the_number_of_workers_is_to_be_given(job):
    spec = job(cluster={"kind": "scheduler", "address": "tcp://host:8786"})
    with pytest.raises(JobFileError, match="give --workers"):
        forecast(spec, progress=unshown)
    predicted = forecast(spec, workers=100, progress=unshown)
    assert predicted.workers == 100
    assert predicted.memory_limit is None


def test_on_slurm_the_workers_are_the_cores_of_all_jobs(job):
    predicted = forecast(job(cluster={"kind": "slurm", "jobs": 3, "cores": 4, "memory": "8GB"}), progress=unshown)
    assert predicted.workers == 12
    assert predicted.memory_limit == 1_800_000_000


def test_a_job_with_a_model_is_not_planned(job):
    with pytest.raises(JobFileError, match=r"model\.path is set"):
        forecast(job(model={"path": "somewhere"}), progress=unshown)


def test_the_command_prints_the_plan_and_refuses_what_does_not_fit(job, tmp_path, monkeypatch):
    path = tmp_path / "job.toml"
    path.write_text(job().to_toml())
    result = CliRunner().invoke(main, ["plan", str(path), "--workers", "3"])
    assert result.exit_code == 0
    assert "about 600 graphs" in result.output
    assert "on 3 workers" in result.output
    for stage in ("scan", "ingest", "moments", "merge", "projection", "sample", "reference", "embed"):
        assert f"\n{stage}" in result.output
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    result = CliRunner().invoke(main, ["plan", str(path)])
    assert result.exit_code == 2
    assert "about 600 graphs" in result.output
    assert "of disk" in result.output
