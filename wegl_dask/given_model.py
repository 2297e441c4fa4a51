"""A model that was fitted before, by a job or in Python, as a run embeds with it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.folders import Folder
from wegl_dask.graphs import GraphSchema
from wegl_dask.model_files import MODEL_JSON, encode_model, find_model, has_model
from wegl_dask.records import PartRecord
from wegl_dask.run import Run
from wegl_dask.saved_model import Model, Origin
from wegl_dask.spec import EdgesTable, JobSpec, ModelTable
from wegl_dask.storage import RunFolder


@dataclass(frozen=True)
class GivenModel:
    """A model as it is on storage.

    Attributes
    ----------
    description : mapping
        The content of ``model.json``, without what it says of the arrays.
    arrays : mapping of str to ndarray
    model : Model
    origin : Origin
    path : str
        Where it was read.
    """

    description: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    model: Model
    origin: Origin
    path: str

    @classmethod
    def read(cls, path: str) -> "GivenModel":
        """Read the model in a run folder, or in the folder that `wegl_dask.WEGL.save` wrote.

        Raises
        ------
        WeglError
            If there is none, or it is damaged, or of a later format.
        """
        description, arrays = find_model(Folder(path))
        model, origin = Model.from_files(description, arrays), Origin.from_description(description)
        return cls({key: value for key, value in description.items() if key != "arrays"}, arrays, model, origin, path)

    @classmethod
    def of(cls, spec: JobSpec, *, overwrite: bool = False) -> "tuple[JobSpec, GivenModel | None]":
        """Read the model that a job names, and fill in what the job leaves to it; a job may name none.

        Where there is none any more, it is the copy that a run of this job has made, unless `overwrite` would remove it.

        Raises
        ------
        WeglError
            See `read`; or the job is of another model.
        """
        if spec.model.path is None:
            return spec, None
        is_gone = not overwrite and not has_model(Folder(spec.model.path))
        given = (cls._kept(spec) if is_gone else None) or cls.read(spec.model.path)
        return given.completed(spec), given

    @classmethod
    def _kept(cls, spec: JobSpec) -> "GivenModel | None":
        """Read the copy of the model in the run folder of a job, if it is whole, and the one that the job is of."""
        folder = RunFolder(spec.output.path)
        record = folder.record("reference", 0)
        if record is None:
            return None
        try:
            kept, known = cls.read(folder.url), folder.job().get("model", {})
        except WeglError:
            return None
        is_named = spec.model.sha256 == kept.sha256 or (
            spec.model.sha256 is None and known.get("path") == spec.model.path
        )
        # Of a fit, the record has the fingerprint of that.
        return kept if is_named and record.input_fingerprint == kept.sha256 else None

    @property
    def schema(self) -> GraphSchema:
        """Of the graphs that it embeds."""
        return self.model.schema

    @property
    def sha256(self) -> str:
        """SHA-256 of ``model.json``, which holds those of the arrays."""
        return hashlib.sha256(encode_model(self.description, self.arrays)[MODEL_JSON]).hexdigest()

    def completed(self, spec: JobSpec) -> JobSpec:
        """Fill in what the job leaves to the model.

        Raises
        ------
        JobFileError
            If the job is of another model.
        """
        if spec.model.sha256 not in (None, self.sha256):
            raise JobFileError(
                f"model.sha256 = {spec.model.sha256!r}, and the model in {spec.model.path} is {self.sha256}: it is another than "
                "the job was written for; correct model.path, or take model.sha256 out"
            )
        return spec.model_copy(
            update={
                "model": ModelTable(path=spec.model.path, sha256=self.sha256),
                "seed": self.origin.job["seed"],
                "edges": EdgesTable(direction=self.origin.job["edges"]["direction"]),
            }
        )

    def place(self, run: Run) -> PartRecord:
        """Copy the model to the run folder, where it is not there yet: the record of the stage reference."""
        if finished := run.finished("reference", {0: self.sha256}):
            return finished[0]
        run.folder.unmark_success()
        with run.folder.recording("reference", 0, self.sha256) as part:
            part.write_model(self.description, self.arrays)
            part.note(dimension=self.model.dimension, n_points=self.model.n_points)
        run.parts_made += 1
        return run.finished("reference", {0: self.sha256})[0]
