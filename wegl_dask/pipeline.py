"""A whole job: from the source to the embeddings in Parquet, stage by stage, each resumed where an earlier run left it.

::

    scan -> plan -> ingest -> moments -> merge -> projection -> sample -> reference -> embed

Every stage is a bag of descriptors; its results are on storage, with a record each, before the next one starts. What a
part is made from goes into its record as a fingerprint, so a part is made again exactly when that has changed.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from distributed import Client

from wegl_dask import tasks
from wegl_dask.embeddings import EmbeddingFormat
from wegl_dask.errors import WeglError
from wegl_dask.fit import Fit, fit_model, prepare_fit
from wegl_dask.ingest import ShardCensus, check_rejected, ingest, plan_source
from wegl_dask.performance import performance_report
from wegl_dask.progress import Progress
from wegl_dask.records import PartRecord
from wegl_dask.run import Run
from wegl_dask.sources.base import fingerprint
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.version import NUMERICS_VERSION, __version__

VERSIONED_PACKAGES = ("wegl-dask", "numpy", "scipy", "scikit-learn", "POT", "pyarrow", "dask", "distributed", "dask-ml")


@dataclass(frozen=True)
class RunSummary:
    """What a run has done.

    Attributes
    ----------
    location : str
        The run folder.
    rows, rejected : int
        Graphs in ``graphs/`` or ``data/``, and rows in ``rejected/``.
    reasons : dict of str to int
        Rejected rows by reason, the values in it left out.
    repairs : dict of str to int
        Edges dropped, merged and added when the graphs were read.
    shards : int
    n_points, dimension : int
        N and d; 0 where only graphs were made.
    solved : dict of str to int
        Graphs by the solver that gave their plan.
    stage_seconds : dict of str to float
    parts_made : int
        Parts that this run made; the others were there.
    n_bytes : int
        Size of the parts in ``data/``, or ``graphs/``.
    notes : tuple of str
        Choices that the job left to the data.
    """

    location: str
    rows: int
    rejected: int
    reasons: Mapping[str, int]
    repairs: Mapping[str, int]
    shards: int
    n_points: int
    dimension: int
    solved: Mapping[str, int]
    stage_seconds: Mapping[str, float]
    parts_made: int
    n_bytes: int
    notes: tuple[str, ...]


def run_job(
    spec: JobSpec,
    client: Client,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int], Progress] = Progress,
) -> RunSummary:
    """Run a whole job, or what is missing of it.

    Parameters
    ----------
    spec : JobSpec
    client : distributed.Client
    overwrite : bool, default False
        Clear what an earlier run left in the folder.
    progress : callable
        Makes the progress display of a stage.

    Raises
    ------
    WeglError
        If anything stops the job; what was finished stays valid.
    """
    with _claimed(spec, client, overwrite=overwrite, progress=progress) as run:
        census = _needed_graphs(run)
        fit = prepare_fit(spec, census)
        _check_output(fit)
        model = fit_model(run, fit)
        return _finish(run, fit, model, _embed(run, fit, model))


def ingest_job(
    spec: JobSpec,
    client: Client,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int], Progress] = Progress,
) -> RunSummary:
    """Run the stages up to the graph shards; parameters and errors as of `run_job`."""
    with _claimed(spec, client, overwrite=overwrite, progress=progress) as run:
        census = ingest(run, plan_source(run))
        return _summary(run, census, notes=())


@contextmanager
def _claimed(
    spec: JobSpec, client: Client, *, overwrite: bool, progress: Callable[[str, int], Progress]
) -> Iterator[Run]:
    folder = RunFolder(spec.output.path)
    with folder.lock() as lock:
        claim = folder.claim(spec.to_toml(), overwrite=overwrite)
        folder.clean_temporary()
        with performance_report(folder) if spec.output.performance_report else nullcontext():
            yield Run(spec, folder, lock, client, claim.resumed, progress)


def _needed_graphs(run: Run) -> ShardCensus:
    """Ingest what is missing: all shards, or those that are still to be embedded where graphs are not kept."""
    plan = plan_source(run)
    if run.spec.output.keep_graphs or not run.resumed:
        return ingest(run, plan)
    fit = prepare_fit(run.spec, ingest(run, plan, set()))
    model = run.finished("reference", {0: fit.fingerprint})
    if not model:
        return ingest(run, plan)
    inputs = _embed_inputs(fit, model[0])
    return ingest(run, plan, inputs.keys() - run.finished("embed", inputs).keys())


def _embed_inputs(fit: Fit, model: PartRecord) -> dict[int, str]:
    output = json.dumps([fit.spec.output.dtype, fit.spec.output.layout, NUMERICS_VERSION])
    return {
        shard: fingerprint(fit.census.graph_fingerprint(shard), _model_fingerprint(model), output)
        for shard in fit.census.records
    }


def _model_fingerprint(model: PartRecord) -> str:
    (description,) = (file for file in model.files if file.name == "model.json")
    return description.sha256


def _check_output(fit: Fit) -> None:
    """Refuse what cannot be written before anything is computed for it."""
    EmbeddingFormat(
        n_points=fit.n_points,
        dimension=fit.dimension,
        labels=fit.census.plan.labels,
        extra_columns=fit.census.plan.extra_columns,
        dtype=fit.spec.output.dtype,
        layout=fit.spec.output.layout,
    )


def _embed(run: Run, fit: Fit, model: PartRecord) -> dict[int, PartRecord]:
    spec, inputs = run.spec, _embed_inputs(fit, model)
    records = run.complete(
        "embed",
        partial(
            tasks.embed_shard,
            run.folder,
            model_fingerprint=_model_fingerprint(model),
            dtype=spec.output.dtype,
            layout=spec.output.layout,
            metadata={"version": __version__, "numerics_version": NUMERICS_VERSION, "seed": spec.seed},
            fail=spec.source.on_error == "fail",
        ),
        [tasks.ShardTask(shard, input_fingerprint) for shard, input_fingerprint in inputs.items()],
    )
    reasons = fit.census.reasons
    for record in records.values():
        reasons.update(record.extra.get("reasons", {}))
    check_rejected(spec, fit.census.n_rows, reasons)
    return records


def _finish(run: Run, fit: Fit, model: PartRecord, records: Mapping[int, PartRecord]) -> RunSummary:
    summary = _summary(run, fit.census, notes=_notes(run.spec, fit), fit=fit, records=records)
    plan = run.folder.records("plan")
    kept = [model, *fit.census.records.values(), *records.values()]
    run.folder.remove_scratch()
    run.folder.keep_only([*plan, *kept])
    # What workers have begun that did not live to end it.
    run.folder.clean_temporary()
    if not run.spec.output.keep_graphs:
        run.folder.remove_graphs()
    if run.parts_made or not _is_complete(run.folder):
        if run.spec.output.keep_graphs:
            _require_undisturbed(run, "ingest", fit.census.records)
        _require_undisturbed(run, "embed", records)
        run.folder.write_manifest(
            kept,
            stage_seconds=run.stage_seconds,
            versions={package: version(package) for package in VERSIONED_PACKAGES if package != "wegl-dask"}
            | {"wegl-dask": __version__},
            summary={
                "rows": summary.rows,
                "rejected": summary.rejected,
                "n_points": summary.n_points,
                "dimension": summary.dimension,
            },
        )
        run.folder.mark_success()
    return summary


def _is_complete(folder: RunFolder) -> bool:
    try:
        folder.read_manifest()
    except WeglError:
        return False
    return folder.has_succeeded()


def _require_undisturbed(run: Run, stage: str, records: Mapping[int, PartRecord]) -> None:
    """Look once more at what is to be called finished.

    A task of a run that was killed may live on, on a worker of an existing scheduler, and write into the folder late.
    """
    run.lock.ensure_held()
    there = run.folder.finished(stage, {index: record.input_fingerprint for index, record in records.items()})
    changed = [index for index, record in records.items() if index not in there or there[index].files != record.files]
    if changed:
        raise WeglError(
            f"{run.folder.location()}: part {changed[0]} of the stage {stage} was written anew while the job was running "
            f"({len(changed)} parts in all), by a task of an earlier run perhaps: run the job again, it makes them again"
        )


def _summary(
    run: Run,
    census: ShardCensus,
    *,
    notes: tuple[str, ...],
    fit: Fit | None = None,
    records: Mapping[int, PartRecord] | None = None,
) -> RunSummary:
    parts, subfolder = (census.records, "graphs") if records is None else (records, "data")
    reasons, solved = census.reasons, Counter[str]()
    for record in (records or {}).values():
        reasons.update(record.extra.get("reasons", {}))
        solved.update(record.extra["solved"])
    return RunSummary(
        location=run.folder.location(),
        rows=sum(record.rows(subfolder) for record in parts.values()),
        rejected=census.n_rejected + sum(record.rows("rejected") for record in (records or {}).values()),
        reasons=dict(reasons.most_common()),
        repairs={
            name: census.total(name) for name in ("self_loops_dropped", "parallel_edges_merged", "reverse_edges_added")
        },
        shards=len(parts),
        n_points=fit.n_points if fit else 0,
        dimension=int(next(iter(records.values())).extra["dimension"]) if records else 0,
        solved=dict(solved),
        stage_seconds=dict(run.stage_seconds),
        parts_made=run.parts_made,
        n_bytes=sum(file.n_bytes for record in parts.values() for file in record.files if file.folder == subfolder),
        notes=notes,
    )


def _notes(spec: JobSpec, fit: Fit) -> tuple[str, ...]:
    """Say what was chosen for the user."""
    notes = []
    if spec.nodes.features is None:
        notes.append(f"node features: {', '.join(fit.settings.features)} (nodes.features is not set)")
    if spec.edges.features is None:
        notes.append(f"edge features: {fit.settings.edge_features} (edges.features is not set)")
    return tuple(notes)
