"""What a worker does on the way from graph shards to the model: moments, projection, samples, reference.

As in `wegl_dask.tasks`, a task gets a small descriptor and leaves its results in the run folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import dask
import numpy as np

from wegl_dask.accumulation import MomentAccumulator
from wegl_dask.checksums import fingerprint
from wegl_dask.errors import JobFileError, SettingsError
from wegl_dask.fitting import draw_graphs, draw_points, projection_from_moments
from wegl_dask.graphs import IntArray
from wegl_dask.points import NodeSettings, PointEmbedding
from wegl_dask.projection import Moments, Projection, column_factors, random_directions
from wegl_dask.records import PartFile, PartRecord, record_path
from wegl_dask.reference import (
    KMEANS_DTYPE,
    as_sample,
    kmeans_reference,
    mini_batches,
    origin_reference,
    reference_from_samples,
)
from wegl_dask.saved_model import Model, Origin
from wegl_dask.spec import JobSpec, ReferenceTable
from wegl_dask.storage import RunFolder
from wegl_dask.tasks import ShardTask, graphs_of_fit, read_graphs, read_plan


@dataclass(frozen=True)
class MergeTask:
    """Some moments files to be merged into one.

    Attributes
    ----------
    index : int
    files : tuple of PartFile
    """

    index: int
    files: tuple[PartFile, ...]

    @property
    def indices(self) -> tuple[int, ...]:
        """Index of the merged part."""
        return (self.index,)

    @property
    def input_fingerprint(self) -> str:
        """Hash of the files' hashes."""
        return fingerprint(*(file.sha256 for file in self.files))

    def __str__(self) -> str:
        return f"merge {self.index}"


@dataclass(frozen=True)
class WrittenParts:
    """Parts of one stage by their indices and one hash of all their files: of many, the files would fill a message.

    Attributes
    ----------
    stage : str
    indices : ndarray of int32, (n_parts,)
        In ascending order.
    sha256 : str
        Hash of the files' hashes.
    """

    stage: str
    indices: IntArray
    sha256: str

    @classmethod
    def of(cls, stage: str, records: Mapping[int, PartRecord]) -> "WrittenParts":
        """Name the parts of some records, which are given by index."""
        indices = sorted(records)
        hashes = (file.sha256 for index in indices for file in records[index].files)
        return cls(stage, np.array(indices, dtype=np.int32), fingerprint(*hashes))

    def records(self, folder: RunFolder) -> list[PartRecord]:
        """Read the records again, in order; WeglError where they are not there, or those of other files."""
        found = folder.written_records(self.stage, self.indices.tolist())
        if WrittenParts.of(self.stage, found).sha256 != self.sha256:
            raise folder.taken_over(record_path(self.stage, int(self.indices[0])))
        return list(found.values())


@dataclass(frozen=True)
class SampleTask:
    """A number of nodes (or graphs) to be drawn from one shard, for the fit of a fingerprint.

    Attributes
    ----------
    index : int
    fit_fingerprint : str
    graphs : str
        SHA-256 of the shard's graphs.
    count : int
    """

    index: int
    fit_fingerprint: str
    graphs: str
    count: int

    @property
    def indices(self) -> tuple[int, ...]:
        """Index of the shard."""
        return (self.index,)

    @property
    def input_fingerprint(self) -> str:
        """Hash of everything the sample is made from."""
        return fingerprint(self.fit_fingerprint, str(self.count))

    def __str__(self) -> str:
        return f"shard {self.index}"


@dataclass(frozen=True)
class FitTask:
    """The fit of the whole collection, by its fingerprint."""

    input_fingerprint: str
    indices: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        return "the whole collection"


def shard_moments(
    folder: RunFolder, settings: NodeSettings, task: ShardTask, *, seen: PartFile, scatter: bool, train: bool
) -> int:
    """Take the moments of one shard's node embeddings."""
    with folder.recording("moments", task.index, task.input_fingerprint) as part:
        graphs = graphs_of_fit(read_graphs(folder, task.index, task.graphs), train=train)
        columns = folder.read_arrays(seen)["seen"]
        moments = settings.build().moments(graphs, columns, scatter=scatter)
        part.write_arrays("moments", _moments_arrays(moments))
    return graphs.n_graphs


def merge_moments(folder: RunFolder, task: MergeTask) -> int:
    """Merge moments in the order given; two are in memory at a time."""
    with folder.recording("merge", task.index, task.input_fingerprint) as part:
        first, *others = task.files
        moments = _read_moments(folder, first)
        merged = MomentAccumulator(len(moments.mean), scatter=moments.has_scatter)
        merged.add(moments)
        for file in others:
            del moments
            moments = _read_moments(folder, file)
            merged.add(moments)
        part.write_arrays("merge", _moments_arrays(merged.moments()))
    return 0


def shard_sketch(
    folder: RunFolder,
    settings: NodeSettings,
    task: ShardTask,
    *,
    seen: PartFile,
    moments: PartFile,
    standardize: bool,
    components: int,
    seed: int,
    train: bool,
) -> int:
    """Multiply the scatter of one shard's node embeddings with random directions.

    Raises
    ------
    JobFileError
        If a variance of the node embeddings is not finite.
    """
    with folder.recording("sketch", task.index, task.input_fingerprint) as part:
        graphs = graphs_of_fit(read_graphs(folder, task.index, task.graphs), train=train)
        merged = _read_moments(folder, moments)
        with _errors_of_the_job():
            factors = column_factors(merged, standardize=standardize)
        products = settings.build().sketch(
            graphs,
            folder.read_arrays(seen)["seen"],
            merged.mean,
            factors,
            random_directions(len(merged.mean), components, seed),
        )
        part.write_arrays("sketch", {"products": products})
    return graphs.n_graphs


def write_projection(
    folder: RunFolder,
    settings: NodeSettings,
    task: FitTask,
    *,
    moments: PartFile,
    seen: PartFile,
    standardize: bool,
    components: int | None,
    sketches: WrittenParts | None,
    seed: int,
) -> int:
    """Fit the projection, to `sketches` where there are some, which are added in their order.

    Raises
    ------
    JobFileError
        If the node embeddings vary in fewer directions than components are asked for, or a variance is not finite.
    """
    nodes = settings.build()
    columns = folder.read_arrays(seen)["seen"]
    with folder.recording("projection", 0, task.input_fingerprint) as part:
        merged, sketch = _read_moments(folder, moments), None
        if sketches is not None and components is not None:
            first, *others = (record.files[0] for record in sketches.records(folder))
            products = folder.read_arrays(first)["products"]
            for file in others:
                products += folder.read_arrays(file)["products"]
            sketch = random_directions(len(merged.mean), components, seed), products
        with _errors_of_the_job():
            projection = projection_from_moments(
                nodes, columns, merged, standardize=standardize, components=components, sketch=sketch
            )
        arrays = {
            "mean": projection.mean,
            "scale": projection.scale,
            "variances": projection.variances,
            "total_variance": np.array(projection.total_variance),
        }
        if projection.components is not None:
            arrays["components"] = projection.components
        part.write_arrays("projection", arrays)
    return 0


def sample_nodes(
    folder: RunFolder,
    settings: NodeSettings,
    task: SampleTask,
    *,
    projection: PartFile,
    train: bool,
    seed: int,
    dtype: type[np.floating[Any]],
) -> int:
    """Draw some of one shard's points, each as likely as any other, without repeats, and keep them as `dtype`.

    Raises
    ------
    JobFileError
        If one is too large for it.
    """
    with folder.recording("sample", task.index, task.input_fingerprint) as part:
        embedding = PointEmbedding(settings.build(), _projection(folder, projection))
        graphs = graphs_of_fit(read_graphs(folder, task.index, task.graphs), train=train)
        points = draw_points(embedding, graphs, task.count, np.random.default_rng([seed, task.index]))
        with _errors_of_the_job():
            sample = as_sample(points, dtype)
        part.write_arrays("sample", {"points": sample})
        part.note(points=task.count)
    return 0


def sample_graphs(
    folder: RunFolder, settings: NodeSettings, task: SampleTask, *, projection: PartFile, train: bool, seed: int
) -> int:
    """Draw some of one shard's graphs, each as likely as any other, and keep their points."""
    with folder.recording("sample", task.index, task.input_fingerprint) as part:
        embedding = PointEmbedding(settings.build(), _projection(folder, projection))
        graphs = graphs_of_fit(read_graphs(folder, task.index, task.graphs), train=train)
        points, counts = draw_graphs(embedding, graphs, task.count, np.random.default_rng([seed, task.index]))
        part.write_arrays("sample", {"points": points, "counts": counts})
        part.note(points=len(points))
    return task.count


def write_model(
    folder: RunFolder,
    spec: JobSpec,
    settings: NodeSettings,
    task: FitTask,
    *,
    n_points: int,
    projection: PartFile,
    samples: WrittenParts | None,
    origin: Origin,
    plan: str,
) -> int:
    """Compute the reference from the samples and write the model.

    Parameters
    ----------
    folder : RunFolder
    spec : JobSpec
        With the choices filled in that the job left to the data.
    settings : NodeSettings
    task : FitTask
    n_points : int
        Number N of reference points.
    projection : PartFile
        What `write_projection` wrote.
    samples : WrittenParts or None
        None where the reference needs none.
    origin : Origin
        Without the numbering of categories.
    plan : str
        Fingerprint of the plan, which says how the source numbers categories.

    Raises
    ------
    TooFewPointsError
        If the graphs have fewer than N distinct node embeddings.
    """
    with folder.recording("reference", 0, task.input_fingerprint) as part:
        fitted = _projection(folder, projection)
        sampled = samples.records(folder) if samples is not None else []
        model = Model(
            schema=settings.schema,
            points=PointEmbedding(settings.build(), fitted),
            reference=_reference(folder, spec.reference, sampled, fitted, n_points=n_points, seed=spec.seed),
            rounding_step=fitted.rounding_step,
            directed=spec.edges.direction == "directed",
            solver=spec.transport.solver,
            regularization=spec.transport.regularization,
            auto_size=spec.transport.auto_size,
        )
        part.write_model(*model.to_files(replace(origin, numbering=read_plan(folder, 0, plan).numbering)))
        part.note(dimension=model.dimension, n_points=model.n_points)
    return 0


@contextmanager
def _errors_of_the_job() -> Iterator[None]:
    """Report what cannot be fitted as an error of the job."""
    try:
        yield
    except SettingsError as error:
        raise JobFileError(f"{error}; run the corrected job with --overwrite") from error


def _reference(
    folder: RunFolder,
    table: ReferenceTable,
    samples: Sequence[PartRecord],
    projection: Projection,
    *,
    n_points: int,
    seed: int,
) -> np.ndarray:
    if table.kind == "origin":
        return origin_reference(projection.dimension)
    step = projection.rounding_step
    if table.kind == "kmeans":
        import dask.array as da  # noqa: PLC0415  takes half a second, and nothing else needs it

        points = _all_points(folder, samples, projection.dimension)
        bounds = mini_batches(len(points), projection.dimension, n_points).tolist()
        # Views: `dask.array.from_array` would copy the points.
        batches = [
            da.from_delayed(
                dask.delayed(points[start:stop], traverse=False), (stop - start, projection.dimension), points.dtype
            )
            for start, stop in pairwise(bounds)
        ]
        # The mini-batches are a serial chain: here, next to their input, nothing has to be sent about.
        with dask.config.set(scheduler="synchronous"):
            return kmeans_reference(da.concatenate(batches), n_points, epochs=table.epochs, step=step, seed=seed)
    arrays = (folder.read_arrays(record.files[0]) for record in samples)
    found = ((part["points"], part.get("counts")) for part in arrays)
    return reference_from_samples(table.kind, found, n_points, step=step, seed=seed)


def _all_points(folder: RunFolder, samples: Sequence[PartRecord], dimension: int) -> np.ndarray:
    """Read all samples into one array, which is there once."""
    points = np.empty((sum(int(record.extra["points"]) for record in samples), dimension), KMEANS_DTYPE)
    start = 0
    for record in samples:
        block = folder.read_arrays(record.files[0])["points"]
        points[start : start + len(block)] = block
        start += len(block)
    return points


@lru_cache(maxsize=2)
def _projection(folder: RunFolder, file: PartFile) -> Projection:
    arrays = folder.read_arrays(file)
    return Projection(
        arrays["mean"],
        arrays["scale"],
        arrays.get("components"),
        arrays["variances"],
        float(arrays["total_variance"]),
    )


def _read_moments(folder: RunFolder, file: PartFile) -> Moments:
    arrays = folder.read_arrays(file)
    return Moments(int(arrays["count"]), arrays["mean"], arrays["deviations"])


def _moments_arrays(moments: Moments) -> dict[str, np.ndarray]:
    return {"count": np.array(moments.count), "mean": moments.mean, "deviations": moments.deviations}
