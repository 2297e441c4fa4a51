"""The stages moments, merge, projection, sample and reference: from graph shards to the model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np

from wegl_dask import tasks
from wegl_dask.errors import JobFileError
from wegl_dask.features import default_features
from wegl_dask.ingest import ShardCensus
from wegl_dask.points import NodeEmbedding, NodeSettings, PointEmbedding
from wegl_dask.projection import Projection, fit_projection
from wegl_dask.records import PartRecord
from wegl_dask.reference import barycenter_reference, kmeans_reference, normal_reference, sample_reference
from wegl_dask.run import Run
from wegl_dask.saved_model import Model
from wegl_dask.sources.base import fingerprint
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.version import NUMERICS_VERSION, __version__

SCATTER_WIDTH = 4096
"""Widest moments whose scatter matrix is taken: 128 MB a shard."""

MERGE_FAN_IN = 16

SAMPLE_ENTRIES = 50_000_000
"""Float64 entries that the sample for the reference has at most: 400 MB."""


@dataclass(frozen=True)
class Fit:
    """What is to be fitted, and on what.

    Attributes
    ----------
    spec : JobSpec
        With the choices that the job left open filled in.
    census : ShardCensus
    settings : NodeSettings
    n_points : int
        Number N of reference points.
    n_graphs, n_nodes : int
        Graphs and points (virtual nodes included) that the statistics are taken from.
    """

    spec: JobSpec
    census: ShardCensus
    settings: NodeSettings
    n_points: int
    n_graphs: int
    n_nodes: int

    @property
    def train(self) -> bool:
        """Whether only the graphs of the training split count."""
        return self.spec.projection.fit_on == "train"

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the model follows from."""
        tables = self.spec.model_dump(
            include={"seed", "nodes", "edges", "diffusion", "projection", "reference", "transport"}
        )
        graphs = [self.census.graph_fingerprint(shard) for shard in self.census.records]
        return fingerprint(json.dumps([tables, self.n_points, graphs, NUMERICS_VERSION], sort_keys=True))

    def counts(self, shard: int) -> tuple[int, int]:
        """Graphs and points of a shard that the statistics are taken from."""
        extra = self.census.records[shard].extra
        graphs, nodes = (
            (extra["train_graphs"], extra["train_nodes"]) if self.train else (extra["graphs"], extra["nodes"])
        )
        return graphs, nodes + self.settings.virtual_node * graphs


def prepare_fit(spec: JobSpec, census: ShardCensus) -> Fit:
    """Fill in what the job leaves to the data, and refuse what the data cannot give.

    Raises
    ------
    JobFileError
        If a feature is asked for that the graphs lack, there are no training graphs, or more principal components are
        asked for than there are features.
    """
    schema = census.plan.schema
    features = spec.nodes.features or default_features(schema)
    edge_features = spec.edges.features or ("labels" if schema.edge_category_counts else "none")
    settings = NodeSettings(
        schema=schema,
        features=tuple(features),
        max_degree=max(census.degrees, default=0),
        degree_clip=spec.nodes.degree_clip,
        embedding_width=spec.nodes.atom_embedding_width,
        seed=spec.seed,
        edge_features=edge_features,
        virtual_node=spec.nodes.virtual_node,
        layers=spec.diffusion.layers,
        pooling=spec.diffusion.pooling,
    )
    try:
        width = settings.build().width
    except ValueError as error:
        raise JobFileError(str(error)) from error
    if spec.projection.components is not None and spec.projection.components > width:
        raise JobFileError(
            f"projection.components = {spec.projection.components}, and the node embeddings have {width} columns: "
            f"set it to {width} at most"
        )
    train = spec.projection.fit_on == "train"
    n_graphs = census.total("train_graphs" if train else "graphs")
    if not n_graphs:
        raise JobFileError('projection.fit_on = "train", and no graph that can be embedded is in the split "train"')
    n_nodes = census.total("train_nodes" if train else "nodes") + spec.nodes.virtual_node * n_graphs
    chosen = spec.model_copy(
        update={
            "nodes": spec.nodes.model_copy(update={"features": list(features)}),
            "edges": spec.edges.model_copy(update={"features": edge_features}),
        }
    )
    return Fit(chosen, census, settings, spec.reference.points or n_nodes // n_graphs, n_graphs, n_nodes)


def fit_model(run: Run, fit: Fit) -> PartRecord:
    """Fit projection and reference and write the model: the record of the stage reference."""
    if finished := run.finished("reference", {0: fit.fingerprint}):
        return finished[0]
    projection_path = _fit_projection(run, fit)
    samples = _sample(run, fit, projection_path)
    with run.timed("reference"):
        task = partial(
            write_model, run.folder, fit.spec, fit.settings, n_points=fit.n_points, projection_path=projection_path
        )
        descriptor = ReferenceTask(fit.fingerprint, tuple(_sample_file(record) for record in samples.values()))
        made = run.make("reference", task, [descriptor], n_parts=1, describe=lambda _: "the reference")
    return made[0]


@dataclass(frozen=True)
class ReferenceTask:
    """The samples that the reference is computed from: paths and numbers of rows."""

    input_fingerprint: str
    samples: tuple[tuple[str, int], ...]


def write_model(
    folder: RunFolder,
    spec: JobSpec,
    settings: NodeSettings,
    task: ReferenceTask,
    *,
    n_points: int,
    projection_path: str,
) -> list[tasks.Record]:
    """Compute the reference on a worker and write the model."""
    with folder.recording("reference", 0, task.input_fingerprint) as part:
        projection = tasks.read_projection(folder, projection_path)
        model = Model(
            schema=settings.schema,
            points=PointEmbedding(settings.build(), projection),
            reference=_reference(folder, spec, task, projection, n_points),
            rounding_step=projection.rounding_step,
            directed=spec.edges.direction == "directed",
            solver=spec.transport.solver,
            regularization=spec.transport.regularization,
            auto_size=spec.transport.auto_size,
        )
        description, arrays = model.to_files()
        part.write_model(_described(description, spec, task.input_fingerprint), arrays)
        part.note(dimension=model.dimension)
    return tasks.as_results(part)


def _described(description: Mapping[str, Any], spec: JobSpec, input_fingerprint: str) -> dict[str, Any]:
    """Add to a model's description what it was made by."""
    job = spec.model_dump(
        mode="json",
        include={"seed", "nodes", "edges", "diffusion", "projection", "reference", "transport"},
        exclude_none=True,
    )
    return {
        **description,
        "job": job,
        "fingerprint": input_fingerprint,
        "numerics_version": NUMERICS_VERSION,
        "versions": {"wegl_dask": __version__, "numpy": np.__version__},
    }


def _reference(
    folder: RunFolder, spec: JobSpec, task: ReferenceTask, projection: Projection, n_points: int
) -> np.ndarray:
    step, seed = projection.rounding_step, spec.seed
    if spec.reference.kind == "kmeans":
        blocks = [
            da.from_delayed(
                dask.delayed(_read_points)(folder, path), shape=(rows, projection.dimension), dtype=np.float64
            )
            for path, rows in task.samples
            if rows
        ]
        # The mini-batches are a serial chain: here, next to their input, nothing has to be sent about.
        with dask.config.set(scheduler="synchronous"):
            return kmeans_reference(
                da.concatenate(blocks), n_points, epochs=spec.reference.epochs, step=step, seed=seed
            )
    if spec.reference.kind == "barycenter":
        graphs: list[np.ndarray] = []
        for path, _ in task.samples:
            arrays = folder.read_arrays(path)
            graphs += np.split(arrays["points"], np.cumsum(arrays["counts"])[:-1])
        return barycenter_reference(graphs, n_points, step=step, seed=seed)
    points = np.concatenate([_read_points(folder, path) for path, _ in task.samples])
    draw = normal_reference if spec.reference.kind == "normal" else sample_reference
    return draw(points, n_points, step=step, seed=seed)


def _read_points(folder: RunFolder, path: str) -> np.ndarray:
    return folder.read_arrays(path)["points"]


def _fit_projection(run: Run, fit: Fit) -> str:
    """Take and merge the moments, fit the projection, and keep it in the scratch folder: its path there."""
    finished = run.finished("projection", {0: fit.fingerprint})
    if finished:
        return finished[0].files[0].path
    nodes = fit.settings.build()
    seen = nodes.features.seen_columns(fit.census.categories, fit.census.degrees)
    scatter = _needs_scatter(fit.spec, nodes, seen)
    train = fit.train
    how = json.dumps([repr(fit.settings), seen.tolist(), scatter, train, NUMERICS_VERSION])
    shards = [shard for shard in fit.census.records if fit.counts(shard)[0]]
    records = run.complete(
        "moments",
        partial(tasks.shard_moments, run.folder, fit.settings, seen=seen.tolist(), scatter=scatter, train=train),
        [tasks.ShardTask(shard, fingerprint(fit.census.graph_fingerprint(shard), how)) for shard in shards],
    )
    with run.timed("moments"):
        moments = tasks.read_moments(run.folder, _merge(run, list(records.values())))
    with run.timed("projection"):
        encoder = nodes.features.encoder
        encoded = encoder is None or nodes.encodes_before_moments(seen)
        try:
            projection = fit_projection(
                moments,
                encoder=None if encoded or encoder is None else encoder[seen],
                columns=seen if encoder is None else None,
                n_columns=nodes.features.n_features,
                repeats=nodes.repeats,
                standardize=fit.spec.projection.standardize,
                components=fit.spec.projection.components,
            )
        except ValueError as error:
            raise JobFileError(str(error)) from error
        with run.folder.recording("projection", 0, fit.fingerprint) as part:
            return part.write_arrays("projection", tasks.projection_arrays(projection)).path


def _needs_scatter(spec: JobSpec, nodes: NodeEmbedding, seen: np.ndarray) -> bool:
    """Whether all pairs of columns are needed: for a PCA, and for the variances of columns that are encoded later."""
    encodes_later = nodes.features.encoder is not None and not nodes.encodes_before_moments(seen)
    scatter = spec.projection.components is not None or encodes_later
    width = nodes.repeats * (nodes.features.n_features if nodes.encodes_before_moments(seen) else len(seen))
    if scatter and width > SCATTER_WIDTH:
        raise JobFileError(
            f"the PCA would need a scatter matrix of {width} x {width} columns, and {SCATTER_WIDTH} are allowed: lower "
            'nodes.degree_clip or diffusion.layers, or set diffusion.pooling to "average" or "final"'
        )
    return scatter


def _merge(run: Run, records: list[PartRecord]) -> str:
    """Merge moments in a tree of fixed shape, in the order of the shards: the path of the last merge."""
    first_index = 0
    while True:
        groups = [records[i : i + MERGE_FAN_IN] for i in range(0, len(records), MERGE_FAN_IN)]
        descriptors = [
            tasks.MergeTask(
                first_index + i,
                fingerprint(*(record.files[0].sha256 for record in group)),
                tuple(record.files[0].path for record in group),
            )
            for i, group in enumerate(groups)
        ]
        finished = run.finished("merge", {task.index: task.input_fingerprint for task in descriptors})
        missing = [task for task in descriptors if task.index not in finished]
        made = run.make(
            "merge",
            partial(tasks.merge_moments, run.folder),
            missing,
            n_parts=len(missing),
            describe=lambda task: f"merge {task.index}",
        )
        records = [(finished | made)[task.index] for task in descriptors]
        if len(records) == 1:
            return records[0].files[0].path
        first_index += len(records)


def _sample(run: Run, fit: Fit, projection_path: str) -> dict[int, PartRecord]:
    """Draw nodes (or, for a barycenter, whole graphs) from all shards in proportion to what they hold."""
    by_graph = fit.spec.reference.kind == "barycenter"
    total, wanted = fit.n_nodes, fit.spec.reference.max_nodes
    if by_graph:
        total, wanted = fit.n_graphs, fit.spec.reference.graphs
    dimension = tasks.read_projection(run.folder, projection_path).dimension
    wanted = min(total, wanted, max(SAMPLE_ENTRIES // dimension, 50 * fit.n_points))
    held = np.array([fit.counts(shard)[0 if by_graph else 1] for shard in fit.census.records])
    upto = np.concatenate([[0], np.cumsum(held)]) * wanted // total
    function = tasks.sample_graphs if by_graph else tasks.sample_nodes
    descriptors = [
        tasks.ShardTask(shard, fingerprint(fit.fingerprint, str(count)), int(count))
        for shard, count in zip(fit.census.records, np.diff(upto), strict=True)
        if count
    ]
    return run.complete(
        "sample",
        partial(function, run.folder, fit.settings, projection=projection_path, train=fit.train, seed=fit.spec.seed),
        descriptors,
    )


def _sample_file(record: PartRecord) -> tuple[str, int]:
    return record.files[0].path, int(record.extra["points"])
