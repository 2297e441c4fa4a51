"""Embeddings of one data set with many settings: its graphs are ingested once."""

import io
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client

from wegl_dask.folders import Folder
from wegl_dask.graphs import GraphBatch, concatenate
from wegl_dask.pipeline import ingest_job, run_job
from wegl_dask.progress import Progress
from wegl_dask.reading import Embeddings, read_embeddings
from wegl_dask.shards import read_shard
from wegl_dask.spec import JobSpec

GRAPH_FOLDER, RUN_FOLDER = "graphs", "runs"


class DataSet:
    """A data set of a shipped job file, and its embeddings in a folder.

    Parameters
    ----------
    name : str
        For files and messages.
    job_toml : str
        Its job file.
    root : str
        Folder of the data, ``source.root``.
    folder : str
        Where graphs and embeddings are kept.
    client : distributed.Client
    """

    def __init__(self, name: str, job_toml: str, root: str, folder: str, client: Client) -> None:
        self._name = name
        self._folder = folder
        self._client = client
        graphs = f"{folder}/{GRAPH_FOLDER}/{self._name}"
        self._job = JobSpec.from_toml(
            job_toml, [f'source.root="{root}"', f'output.path="{graphs}"'], where=f"the job file of {name}"
        )
        ingest_job(self._job, client, progress=_quiet)
        self._graphs = f"{graphs}/graphs"

    @property
    def job(self) -> JobSpec:
        """Its job, as far as the ingest."""
        return self._job

    def read(self) -> tuple[GraphBatch, npt.NDArray[Any]]:
        """Read all graphs, and their labels."""
        folder = Folder(self._graphs)
        shards = [read_shard(io.BytesIO(folder.read(name))) for name in sorted(folder.listing(""))]
        labels = [shard.rows.column("label").to_numpy() for shard in shards]
        return concatenate([shard.graphs for shard in shards]), np.concatenate(labels)

    def embed(self, name: str, changes: Mapping[str, Any]) -> Embeddings:
        """Embed the data set, unless that was done, with other values of some keys of the job file.

        Parameters
        ----------
        name : str
            Of the run's folder: another for other changes.
        changes : mapping
            By table, the keys that have other values; and values of keys that are in no table, such as ``seed``.
        """
        out = self._run(name)
        values = self._job.model_dump(exclude_none=True)
        values["source"] = {"kind": "graph_parquet", "path": self._graphs}
        values["output"] = {"path": out, "keep_graphs": False}
        for key, value in changes.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, Mapping) else value
        run_job(JobSpec.from_values(values, where=name), self._client, progress=_quiet)
        return read_embeddings(out, ("graph_id", "label", "split"))

    def remove(self, name: str) -> None:
        """Remove the embeddings of a name, which would take 90 MB on ogbg-molhiv."""
        shutil.rmtree(self._run(name))

    def _run(self, name: str) -> str:
        return f"{self._folder}/{RUN_FOLDER}/{self._name}-{name}"


def _quiet(stage: str, total: int, **settings: Any) -> Progress:
    """Show nothing: hundreds of embeddings are made, of seconds each."""
    return Progress(stage, total, **settings, stream=io.StringIO())
