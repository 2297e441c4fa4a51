"""The stage embed: from graph shards and the model to the embeddings."""

import json
from functools import partial

from wegl_dask import tasks
from wegl_dask.checksums import fingerprint
from wegl_dask.ingest import ShardCensus, check_rejected
from wegl_dask.records import PartRecord
from wegl_dask.run import Run
from wegl_dask.sources import reading_packages
from wegl_dask.spec import JobSpec
from wegl_dask.version import NUMERICS_VERSION, __version__
from wegl_dask.worker_checks import MATCHED_PACKAGES, own_versions


def embed(run: Run, census: ShardCensus, model: PartRecord) -> dict[int, PartRecord]:
    """Embed the graph shards that are not embedded yet: the records of all.

    Parameters
    ----------
    run : Run
    census : ShardCensus
    model : PartRecord
        Of the stage reference.

    Raises
    ------
    TooManyRejectedError
        If more rows were rejected than the job allows, those included that no solver could do.
    """
    spec = run.spec
    records = run.complete(
        "embed",
        partial(
            tasks.embed_shard,
            run.folder,
            model_fingerprint=_model_fingerprint(model),
            dtype=spec.output.dtype,
            layout=spec.output.layout,
            metadata={
                "job": fingerprint(json.dumps(run.folder.read_model()[0]["job"], sort_keys=True)),
                "numerics_version": NUMERICS_VERSION,
                "seed": spec.seed,
                "versions": package_versions(spec),
            },
            fail=spec.source.on_error == "fail",
            device=spec.cluster.device,
        ),
        [
            tasks.ShardTask(shard, value, census.graph_fingerprint(shard))
            for shard, value in _embed_inputs(spec, census, model).items()
        ],
    )
    reasons = census.reasons
    for record in records.values():
        reasons.update(record.extra.get("reasons", {}))
    check_rejected(spec, census.n_rows, reasons)
    return records


def not_embedded(run: Run, census: ShardCensus, model: PartRecord) -> set[int]:
    """Find the shards whose embeddings are missing, altered, or made from something else than they would be now."""
    inputs = _embed_inputs(run.spec, census, model)
    return inputs.keys() - run.finished("embed", inputs).keys()


def package_versions(spec: JobSpec) -> dict[str, str]:
    """Versions of the packages that the numbers come from."""
    reading = reading_packages(spec.source)
    versions = own_versions(reading)
    return {package: versions[package] for package in (*MATCHED_PACKAGES, *reading)} | {"wegl-dask": __version__}


def _embed_inputs(spec: JobSpec, census: ShardCensus, model: PartRecord) -> dict[int, str]:
    output = json.dumps([spec.output.dtype, spec.output.layout, NUMERICS_VERSION])
    return {
        shard: fingerprint(census.graph_fingerprint(shard), _model_fingerprint(model), output)
        for shard in census.records
    }


def _model_fingerprint(model: PartRecord) -> str:
    (description,) = (file for file in model.files if file.name == "model.json")
    return description.sha256
