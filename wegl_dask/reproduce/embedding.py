"""Embeddings of one data set with many settings: its graphs are ingested once."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client

from wegl_dask.checksums import fingerprint
from wegl_dask.claims import JOB_NAME, clear
from wegl_dask.errors import JobFileError, OtherRunError
from wegl_dask.folders import Folder
from wegl_dask.graphs import GraphBatch, concatenate
from wegl_dask.job_checks import MODEL_KEYS
from wegl_dask.pipeline import RunSummary, ingest_job, run_job
from wegl_dask.progress import Progress
from wegl_dask.reading import Embeddings, read_embeddings
from wegl_dask.shards import read_shard
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.toml import read_toml

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
        self._job = run_shipped(
            ingest_job,
            job_toml,
            root,
            graphs,
            client,
            where=f"the job file of {name}",
            progress=partial(_if_long, name),
        )
        self._graphs = f"{graphs}/graphs"
        tables = self._job.model_dump(include=set(MODEL_KEYS))
        self._fingerprint = fingerprint(json.dumps([tables, graph_fingerprint(graphs)], sort_keys=True))

    @property
    def job(self) -> JobSpec:
        """Its job, as far as the ingest."""
        return self._job

    @property
    def fingerprint(self) -> str:
        """Hash of its graphs and labels, wherever they lie, and of what its job file makes of them.

        Steps that follow from them have it among their settings.
        """
        return self._fingerprint

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
        with _advised(out):
            progress = partial(_if_long, f"{self._name}, {name}")
            run_job(JobSpec.from_values(values, where=name), self._client, progress=progress)
        return read_embeddings(out, ("graph_id", "label", "split"))

    def remove(self, name: str) -> None:
        """Remove the embeddings of a name, which would take 90 MB on ogbg-molhiv."""
        run = RunFolder(self._run(name))
        clear(run)
        if run.is_local:
            shutil.rmtree(run.url)

    def _run(self, name: str) -> str:
        return f"{self._folder}/{RUN_FOLDER}/{self._name}-{name}"


def require_data(root: str) -> None:
    """Refuse a folder of data that is not there.

    Raises
    ------
    JobFileError
        If there is no such folder, or it is on an object store and holds nothing.
    """
    folder = Folder(root)
    if not (Path(folder.url).is_dir() if folder.is_local else folder.listing()):
        raise JobFileError(
            f"there is no folder {folder.url}, which --data names: name the one that holds the data sets, or make an empty "
            "one, to which they are downloaded"
        )


def run_shipped(
    run: Callable[..., RunSummary],
    job_toml: str,
    root: str,
    output: str,
    client: Client,
    *,
    where: str = "job file",
    progress: Callable[..., Progress] = Progress,
) -> JobSpec:
    """Run a shipped job file, or its ingest alone, on data in a folder of the user's; refuse what is there of other data.

    Parameters
    ----------
    run : callable
        `run_job` or `ingest_job`.
    job_toml : str
    root, output : str
        ``source.root`` and ``output.path``, in place of those of the job file.
    client : distributed.Client
    where : str
        What to call the job file in messages.
    progress : callable

    Returns
    -------
    JobSpec
        As it was run.

    Raises
    ------
    JobFileError
        If the output folder holds something else.
    """
    root = Folder(root).url
    earlier = _earlier_root(RunFolder(output), root)
    values = read_toml(job_toml)
    values["source"]["root"] = earlier or root
    values["output"]["path"] = output
    job = JobSpec.from_values(values, where=where)
    with _advised(output):
        # Where nothing was read yet, whatever an earlier command was told of the data was not so.
        run(job, client, overwrite=earlier is None, progress=progress)
    return job


def graph_fingerprint(location: str) -> str:
    """Hash the graphs and labels that a run has read, wherever they lay: every shard's content, and how it was read."""
    records = RunFolder(location).records("ingest")
    return fingerprint(*(f"{record.index} {record.input_fingerprint}\n" for record in records))


def _earlier_root(graphs: RunFolder, root: str) -> str | None:
    """Find the folder that graphs were read from, as the command had it; None where none were read.

    Raises
    ------
    JobFileError
        If it is another than the one given.
    """
    if not graphs.records():
        return None
    try:
        values = read_toml((graphs.read_if_there(JOB_NAME) or b"").decode())
        earlier = str(values["source"]["root"])
    except (ValueError, KeyError, TypeError) as error:
        raise JobFileError(f"{graphs.location(JOB_NAME)} is damaged ({error!r}). {_advice(graphs.url)}") from error
    if Folder(earlier).url != root:
        raise JobFileError(
            f"{graphs.location()} holds what was read from {earlier}, and now --data is {root}. Give {earlier}, or, if the "
            f"data were moved, remove {graphs.location()}; for other data choose another folder by -o"
        )
    return earlier


@contextlib.contextmanager
def _advised(folder: str) -> Iterator[None]:
    """Say of a folder that holds another run what these commands can do about it."""
    try:
        yield
    except OtherRunError as error:
        raise JobFileError(f"{error.found}. {_advice(folder)}") from error


def _advice(folder: str) -> str:
    return f"Choose another folder by -o, or remove {folder}: it is made anew"


def _if_long(what: str, stage: str, total: int) -> Progress:
    """Show the stages of what is embedded that take long: there are hundreds, and most take a second."""
    return Progress(f"{what}: {stage}", total, brief=True)
