"""Models fitted in this process, for benchmarks of what comes after the fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wegl_dask.fit import fit_model, prepare_fit
from wegl_dask.graphs import GraphBatch, concatenate
from wegl_dask.ingest import ingest, plan_source
from wegl_dask.progress import Progress
from wegl_dask.saved_model import Model
from wegl_dask.spec import JobSpec
from wegl_dask.tasks import read_graphs
from wegl_dask.trial import trial_run

DEGREES = {"nodes": {"features": ["degrees"]}, "projection": {"components": 20}}

DATA_SETS: dict[str, dict[str, Any]] = {
    "ogbg-molhiv": {
        "source": {"kind": "ogb", "root": "ogb"},
        "nodes": {"features": ["atom_embedding"], "virtual_node": True},
        "projection": {"components": 20},
    },
    "PTC_MR": {"source": {"kind": "tud", "root": "TUDataset"}, "diffusion": {"pooling": "concat"}},
    "PROTEINS": {"source": {"kind": "tud", "root": "TUDataset"}, "diffusion": {"pooling": "concat"}},
    "IMDB-BINARY": {"source": {"kind": "tud", "root": "TUDataset"}, **DEGREES},
    "REDDIT-BINARY": {"source": {"kind": "tud", "root": "TUDataset"}, **DEGREES},
}
"""The jobs of the benchmarks, in the layout of a folder that holds ogb/ and TUDataset/."""


def job(name: str, data: Path, output: Path | str, **tables: Mapping[str, Any]) -> JobSpec:
    """Make the job of a data set; `tables` are added to it."""
    values = {key: dict(table) for key, table in DATA_SETS[name].items()}
    values["source"] |= {"name": name, "root": str(data / values["source"]["root"]), "download": False}
    values["output"] = {"path": str(output)}
    for key, table in tables.items():
        values[key] = values.get(key, {}) | dict(table)
    return JobSpec.from_values(values)


def fit(spec: JobSpec, n_graphs: int | None = None) -> tuple[Model, GraphBatch]:
    """Fit to all graphs of a job's source: the model, and the graphs (the first of every shard, `n_graphs` in all)."""
    with trial_run(spec, Progress) as run:
        census = ingest(run, plan_source(run))
        fit_model(run, prepare_fit(run.spec, census))
        model = Model.from_files(*run.folder.read_model())
        graphs = [read_graphs(run.folder, shard, census.graph_fingerprint(shard)).graphs for shard in census.records]
    total = sum(batch.n_graphs for batch in graphs)
    share = 1.0 if n_graphs is None else min(1.0, n_graphs / total)
    return model, concatenate([batch.slice(0, max(1, round(share * batch.n_graphs))) for batch in graphs])
