"""What tasks take for their input, and what they say of the rows that they could not use."""

import numpy as np
import pyarrow as pa
import pytest

from wegl_dask import fit_tasks, tasks
from wegl_dask.embed import embed
from wegl_dask.errors import WeglError
from wegl_dask.fit import fit_model, prepare_fit
from wegl_dask.ingest import ingest, plan_source
from wegl_dask.progress import Progress
from wegl_dask.spec import JobSpec
from wegl_dask.trial import TrialRun, trial_run


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (
            ["RDKit cannot parse the SMILES 'C1': unclosed ring", "RDKit cannot parse the SMILES 'C(': no SMILES"],
            "RDKit cannot parse the SMILES …",
        ),
        (["node 3 has the category -1", "node 12 has the category 7"], "node … has the category …"),
        (["column pIC50_2 holds 'x'; a target holds a number"] * 2, "column pIC50_2 holds …; a target holds a number"),
    ],
)
def test_reasons_of_one_kind_are_counted_together(reasons, kind):
    assert tasks._reasons(pa.table({"reason": reasons})) == {kind: 2}


@pytest.mark.parametrize("values", [[], [0], [4, 0, 4, 1], [3, 3, 2, 1], [5, 0, 5, 1], [2**31 - 1, 7, 7], [0, 2**62]])
def test_distinct_values_are_listed_however_large_they_are(values):
    found = tasks._distinct(np.array(values, dtype=np.int64))
    assert found == sorted(set(values))
    assert all(type(value) is int for value in found)


class Steps:
    """Runs all stages of a job in this process, and calls something before each of them."""

    def __init__(self, job, before):
        self._job = JobSpec.from_values(job)
        self._before = before

    def run(self, monkeypatch):
        compute = TrialRun.compute

        def called(run, stage, function, descriptors, **options):
            self._before(run.folder, stage)
            return compute(run, stage, function, descriptors, **options)

        monkeypatch.setattr(TrialRun, "compute", called)
        with trial_run(self._job, Progress) as run:
            census = ingest(run, plan_source(run))
            model = fit_model(run, prepare_fit(run.spec, census))
            embed(run, census, model)
        monkeypatch.undo()


MOLECULES = ("CCO", "CCC", "CCN", "c1ccccc1", "CC(=O)O", "CCCl", "OCC", "CCOC", "CC#N", "C1CC1")
OTHERS = ("c1ccccc1O", "CCCCCCC", "NCCN", "CC(C)(C)O", "OCCO", "BrCCBr", "CCCCO", "COCCOC", "N#CCC#N", "C1CCCCC1")


@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("ingest", "records/plan-00000.json"),
        ("moments", "graphs/part-00000.parquet"),
        ("moments", "scratch/seen-00000-seen.npz"),
        ("merge", "scratch/moments-00000-moments.npz"),
        ("sketch", "graphs/part-00000.parquet"),
        ("sketch", "scratch/seen-00000-seen.npz"),
        ("sketch", "scratch/merge-00000-merge.npz"),
        ("projection", "scratch/seen-00000-seen.npz"),
        ("projection", "scratch/merge-00000-merge.npz"),
        ("projection", "scratch/sketch-00000-sketch.npz"),
        ("sample", "graphs/part-00000.parquet"),
        ("sample", "scratch/projection-00000-projection.npz"),
        ("reference", "scratch/projection-00000-projection.npz"),
        ("reference", "scratch/sample-00000-sample.npz"),
        ("reference", "records/sample-00000.json"),
        ("reference", "records/plan-00000.json"),
        ("embed", "graphs/part-00000.parquet"),
        ("embed", "model/model.json"),
        ("embed", "model/arrays.npz"),
    ],
)
def test_what_a_late_task_of_another_run_has_left_is_not_taken_for_a_part_of_this_one(
    stage, path, tmp_path, monkeypatch
):
    # A cluster goes on for a moment with the tasks of a command that was killed, also when the next has begun.
    def job(name, molecules):
        (tmp_path / name).write_text("".join(f"{smiles} {row}\n" for row, smiles in enumerate(molecules)))
        return {
            "source": {"kind": "smiles", "path": str(tmp_path / name), "nodes_per_shard": 20},
            "nodes": {"features": ["labels"]},
            "projection": {"components": 3, "method": "randomized"},
            "reference": {"points": 3},
            "output": {"path": str(tmp_path / "out")},
        }

    late = []

    def take(folder, at):
        if at == stage:
            late.append(folder.read(path))

    def leave(folder, at):
        if at == stage:
            assert folder.read(path) != late[0]
            folder.write(path, late[0])
            # A worker that has read it before goes on with that.
            fit_tasks._projection.cache_clear()
            tasks.read_plan.cache_clear()

    Steps(job("other.smi", OTHERS), take).run(monkeypatch)
    with pytest.raises(WeglError, match=r"is not what this run has written|is damaged|do not belong together"):
        Steps(job("own.smi", MOLECULES), leave).run(monkeypatch)
