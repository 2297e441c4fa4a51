"""The stages moments, merge, projection, sample and reference: from graph shards to the model."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from wegl_dask import fit_tasks
from wegl_dask.checksums import fingerprint
from wegl_dask.errors import JobFileError, SettingsError
from wegl_dask.fitting import largest_sample, needs_scatter, needs_sketch, sample_shares
from wegl_dask.graphs import IntArray
from wegl_dask.ingest import ShardCensus, node_settings, plan_fingerprint
from wegl_dask.job_checks import MODEL_KEYS
from wegl_dask.memory import (
    Extent,
    Features,
    Imported,
    Terms,
    embed_terms,
    kmeans_terms,
    moments_terms,
    projection_terms,
    reference_terms,
    sample_terms,
    scatter_terms,
    sketch_terms,
)
from wegl_dask.points import NodeEmbedding, NodeSettings
from wegl_dask.projection import n_directions
from wegl_dask.records import PartFile, PartRecord
from wegl_dask.reference import import_clustering, sample_dtype
from wegl_dask.run import Run
from wegl_dask.saved_model import Origin
from wegl_dask.spec import JobSpec
from wegl_dask.tasks import ShardTask
from wegl_dask.version import NUMERICS_VERSION

MERGE_FAN_IN = 16


@dataclass(frozen=True)
class Fit:
    """What is to be fitted, and on what.

    Attributes
    ----------
    spec : JobSpec
        With the choices that the job left open filled in.
    census : ShardCensus
    settings : NodeSettings
    n_points, dimension : int
        Number N of reference points, and number d of coordinates of a point.
    n_graphs, n_nodes : int
        Graphs and points (virtual nodes included) that the statistics are taken from.
    """

    spec: JobSpec
    census: ShardCensus
    settings: NodeSettings
    n_points: int
    dimension: int
    n_graphs: int
    n_nodes: int

    @property
    def train(self) -> bool:
        """Whether only the graphs of the training split count."""
        return self.spec.projection.fit_on == "train"

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that the model follows from."""
        tables = self.spec.model_dump(include=set(MODEL_KEYS))
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
    settings = node_settings(spec, census.plan.schema, max_degree=max(census.degrees, default=0))
    train = spec.projection.fit_on == "train"
    n_graphs = census.total("train_graphs" if train else "graphs")
    if not n_graphs:
        raise JobFileError('projection.fit_on = "train", and no graph that can be embedded is in the split "train"')
    n_nodes = census.total("train_nodes" if train else "nodes") + spec.nodes.virtual_node * n_graphs
    chosen = spec.model_copy(
        update={
            "nodes": spec.nodes.model_copy(update={"features": list(settings.features)}),
            "edges": spec.edges.model_copy(update={"features": settings.edge_features}),
        }
    )
    return Fit(
        spec=chosen,
        census=census,
        settings=settings,
        n_points=1 if spec.reference.kind == "origin" else spec.reference.points or n_nodes // n_graphs,
        dimension=spec.projection.components or settings.build().width,
        n_graphs=n_graphs,
        n_nodes=n_nodes,
    )


def memory_needed(fit: Fit, imported: Imported) -> dict[str, Terms]:
    """Say what a worker's memory must hold in each stage after the ingest, see `wegl_dask.memory`.

    Raises
    ------
    JobFileError
        If a scatter matrix would be needed that is too wide for any worker.
    """
    spec, nodes = fit.spec, fit.settings.build()
    seen = nodes.features.seen_columns(fit.census.categories, fit.census.degrees)
    scatter = _scatter(nodes, seen, spec)
    width = nodes.moments_width(seen)
    components, sketched = spec.projection.components, 0
    if components is not None and needs_sketch(nodes, seen, components, spec.projection.method):
        sketched = n_directions(width, components)
    shards = {shard: record.extra for shard, record in fit.census.records.items()}
    largest = Extent.of_shards(shards, virtual_node=fit.settings.virtual_node)
    features = Features(fit.settings.schema, len(nodes.features.blocks), fit.settings.edge_features)
    stages = {
        "moments": moments_terms(largest, features, width, scatter=scatter),
        "merge": scatter_terms(width, scatter=scatter),
        **({"sketch": sketch_terms(largest, features, width, sketched)} if sketched else {}),
        "projection": {**scatter_terms(width, scatter=scatter), **sketch_terms(None, features, width, sketched)},
        "sample": sample_terms(largest, features, fit.dimension),
        "reference": reference_terms(sample_size(fit), fit.dimension, spec.reference.kind),
        "embed": embed_terms(
            largest,
            features,
            fit.dimension,
            fit.n_points,
            solver=spec.transport.solver,
            auto_size=spec.transport.auto_size,
        ),
    }
    statistics = projection_terms(nodes.width, components)
    for stage in ("projection", "sample", "embed"):
        stages[stage].update(statistics)
    if spec.reference.kind == "kmeans":
        # One worker has it from the first of these stages on, see `fit_model`.
        for terms in stages.values():
            terms.update(kmeans_terms(imported))
    return stages


def _scatter(nodes: NodeEmbedding, seen: IntArray, spec: JobSpec) -> bool:
    try:
        return needs_scatter(nodes, seen, spec.projection.components, spec.projection.method)
    except SettingsError as error:
        raise JobFileError(str(error)) from error


def fit_model(run: Run, fit: Fit) -> PartRecord:
    """Fit projection and reference and write the model: the record of the stage reference."""
    if finished := run.finished("reference", {0: fit.fingerprint}):
        return finished[0]
    prepared = run.prepare(import_clustering) if fit.spec.reference.kind == "kmeans" else None
    projection = _fit_projection(run, fit)
    samples = _sample(run, fit, projection)
    with run.timed("reference"):
        task = partial(
            fit_tasks.write_model,
            run.folder,
            fit.spec,
            fit.settings,
            n_points=fit.n_points,
            projection=projection,
            samples=samples,
            origin=_origin(fit),
            plan=plan_fingerprint(fit.census.plan),
        )
        descriptors = [fit_tasks.FitTask(fit.fingerprint)]
        return run.make("reference", task, descriptors, beside=prepared)[0]


def _origin(fit: Fit) -> Origin:
    """Describe what the model is made from, but for the vocabulary, which can be large and is in the plan."""
    job = fit.spec.model_dump(mode="json", include=set(MODEL_KEYS), exclude_none=True)
    return Origin(job, fit.fingerprint, fit.n_graphs, fit.n_nodes)


def _fit_projection(run: Run, fit: Fit) -> PartFile:
    """Take and merge the moments and fit the projection: its file in the scratch folder."""
    if finished := run.finished("projection", {0: fit.fingerprint}):
        return finished[0].files[0]
    nodes = fit.settings.build()
    columns = nodes.features.seen_columns(fit.census.categories, fit.census.degrees)
    scatter = _scatter(nodes, columns, fit.spec)
    with run.timed("moments"):
        seen = _write_seen(run, columns)
    how = json.dumps([repr(fit.settings), scatter, fit.train, NUMERICS_VERSION])
    records = run.complete(
        "moments",
        partial(fit_tasks.shard_moments, run.folder, fit.settings, seen=seen, scatter=scatter, train=fit.train),
        [
            ShardTask(shard, fingerprint(graphs, columns.tobytes(), how), graphs)
            for shard, graphs in _fitted_shards(fit)
        ],
    )
    with run.timed("moments"):
        moments = _merge(run, list(records.values()))
    sketches = _sketch(run, fit, nodes, columns, seen=seen, moments=moments)
    with run.timed("projection"):
        projection = fit.spec.projection
        task = partial(
            fit_tasks.write_projection,
            run.folder,
            fit.settings,
            moments=moments,
            seen=seen,
            standardize=projection.standardize,
            components=projection.components,
            sketches=sketches,
            seed=fit.spec.seed,
        )
        record = run.make("projection", task, [fit_tasks.FitTask(fit.fingerprint)])[0]
    return record.files[0]


def _fitted_shards(fit: Fit) -> Iterator[tuple[int, str]]:
    """Yield the shards that hold graphs to fit to, each with the SHA-256 of its graphs."""
    for shard in fit.census.records:
        if fit.counts(shard)[0]:
            yield shard, fit.census.graph_fingerprint(shard)


def _sketch(
    run: Run, fit: Fit, nodes: NodeEmbedding, columns: IntArray, *, seen: PartFile, moments: PartFile
) -> fit_tasks.WrittenParts | None:
    """Multiply the scatter of all shards with random directions, where the job asks for that: what each has given."""
    table = fit.spec.projection
    if table.components is None or not needs_sketch(nodes, columns, table.components, table.method):
        return None
    records = run.complete(
        "sketch",
        partial(
            fit_tasks.shard_sketch,
            run.folder,
            fit.settings,
            seen=seen,
            moments=moments,
            standardize=table.standardize,
            components=table.components,
            seed=fit.spec.seed,
            train=fit.train,
        ),
        [ShardTask(shard, fingerprint(fit.fingerprint, graphs), graphs) for shard, graphs in _fitted_shards(fit)],
    )
    return fit_tasks.WrittenParts.of("sketch", records)


def _write_seen(run: Run, seen: np.ndarray) -> PartFile:
    """Keep the columns that occur where the workers find them; there can be more than a message should hold."""
    with run.folder.recording("seen", 0, fingerprint(seen.tobytes())) as part:
        return part.write_arrays("seen", {"seen": seen})


def _merge(run: Run, records: list[PartRecord]) -> PartFile:
    """Merge moments in a tree of fixed shape, in the order of the shards: the file of the last merge."""
    first_index = 0
    while True:
        groups = [records[i : i + MERGE_FAN_IN] for i in range(0, len(records), MERGE_FAN_IN)]
        descriptors = [
            fit_tasks.MergeTask(first_index + i, tuple(record.files[0] for record in group))
            for i, group in enumerate(groups)
        ]
        done = run.finished("merge", {task.index: task.input_fingerprint for task in descriptors})
        missing = [task for task in descriptors if task.index not in done]
        done |= run.make("merge", partial(fit_tasks.merge_moments, run.folder), missing)
        records = [done[task.index] for task in descriptors]
        if len(records) == 1:
            return records[0].files[0]
        first_index += len(records)


def sample_size(fit: Fit) -> int:
    """Say how many points the reference is computed from: at most, or for a barycenter about, since graphs are drawn."""
    reference = fit.spec.reference
    if reference.kind == "origin":
        return 0
    if reference.kind == "barycenter":
        return math.ceil(fit.n_nodes * min(1.0, reference.graphs / fit.n_graphs))
    return largest_sample(fit.n_nodes, reference.max_nodes, dimension=fit.dimension, n_points=fit.n_points)


def _sample(run: Run, fit: Fit, projection: PartFile) -> fit_tasks.WrittenParts | None:
    """Draw nodes (or, for a barycenter, whole graphs) from all shards in proportion to what they hold."""
    if fit.spec.reference.kind == "origin":
        return None
    by_graph = fit.spec.reference.kind == "barycenter"
    wanted = min(fit.n_graphs, fit.spec.reference.graphs) if by_graph else sample_size(fit)
    held = np.array([fit.counts(shard)[0 if by_graph else 1] for shard in fit.census.records])
    draw = (
        fit_tasks.sample_graphs
        if by_graph
        else partial(fit_tasks.sample_nodes, dtype=sample_dtype(fit.spec.reference.kind))
    )
    records = run.complete(
        "sample",
        partial(
            draw,
            run.folder,
            fit.settings,
            projection=projection,
            train=fit.train,
            seed=fit.spec.seed,
        ),
        [
            fit_tasks.SampleTask(shard, fit.fingerprint, fit.census.graph_fingerprint(shard), int(count))
            for shard, count in zip(fit.census.records, sample_shares(held, wanted), strict=True)
            if count
        ],
    )
    return fit_tasks.WrittenParts.of("sample", records)
