"""What a report shows, read from a run folder: counts as they are, distributions and maps from a sample."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, NonNegativeFloat, ValidationError

from wegl_dask.approximation import Approximation, compare_pairs, sample_pairs
from wegl_dask.claims import JOB_NAME
from wegl_dask.errors import WeglError
from wegl_dask.graphs import IntArray
from wegl_dask.invalid import first_problem
from wegl_dask.model_files import MODEL_JSON
from wegl_dask.records import part_index
from wegl_dask.report.trained import TrainedModel, read_trained
from wegl_dask.run_rows import RunRows
from wegl_dask.sources.base import LabelSchema
from wegl_dask.spec import JobSpec
from wegl_dask.storage import MANIFEST_NAME, RunFolder
from wegl_dask.training.problem import FloatMatrix
from wegl_dask.training.results import data_fingerprint

ROW_SAMPLE = 100_000
"""Graphs whose sizes and transport costs are shown, at most."""

MAP_SAMPLE = 5_000
"""Graphs on the map, at most."""

MAP_BYTES = 256_000_000
"""Of their vectors in double precision, at most."""

GRAPH_SAMPLE = 300
"""Graphs whose points are shown, at most."""

PAIR_SAMPLE = 300
"""Pairs of these graphs whose distances are compared, at most."""

PAIR_ENTRIES = 250_000
"""Pairs of nodes of two graphs that are compared, at most: such an exact plan takes some hundredths of a second."""

PAIR_NODES = 2_000
"""Nodes of a graph that is compared, at most: with a small one, or the reference, a plan of 20,000 takes a second."""

POINT_SAMPLE = 4_000
"""Points that are shown, at most."""

SAMPLED_GROUPS = 32
"""Row groups that a sample of vectors is taken from, at most: each is read whole."""

READ_STEPS = 5
"""Times that `read_content` says that it has read something more."""

SAMPLED_PARTS = 4
"""Parts that a sample of points is taken from, at most: each graph shard is read whole."""


@dataclass(frozen=True)
class Variance:
    """What the principal components explain: their shares of the total variance, (d,)."""

    shares: FloatMatrix


@dataclass(frozen=True)
class Points:
    """A sample of the points of graphs, and the reference.

    Attributes
    ----------
    sample : float64, (n, 2)
    reference : float64, (N, 2)
        Their first two principal components: those of the run's projection, or, where it has none, of the sample.
    n_graphs : int
        Graphs that the sample is from.
    """

    sample: FloatMatrix
    reference: FloatMatrix
    n_graphs: int


@dataclass(frozen=True)
class GraphMap:
    """Embeddings of a sample of graphs in the plane of their first two principal components.

    Attributes
    ----------
    places : float64, (n, 2)
    explained : (float, float)
        Shares of the variance of the sample.
    rows : pyarrow.Table
        ``graph_id``, ``label``, ``num_nodes`` and ``transport_cost`` of each.
    """

    places: FloatMatrix
    explained: tuple[float, float]
    rows: pa.Table


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report shows.

    Attributes
    ----------
    location, job_toml : str
    spec : JobSpec
        What the job file says.
    manifest : mapping
    labels : LabelSchema
    reasons : dict of str to int
        Rejected rows by reason.
    solved : dict of str to int
        Graphs by the solver that gave their plan.
    n_bytes : int
        Size of the embeddings.
    n_rows : int
    n_points, dimension : int
    num_nodes, transport_cost : (n_sampled,)
        Of all graphs, or of a sample.
    variance : Variance or None
        None without principal components.
    points : Points or None
        None where the run has not kept its graphs, or points have one coordinate alone.
    approximation : Approximation or None
        Of pairs of a sample of graphs; None where the run has not kept its graphs, has one alone, or large ones alone.
    n_large_pairs : int
        Pairs of the sample that were not compared, as their graphs are large.
    graph_map : GraphMap or None
        None for fewer than three graphs.
    trained : list of TrainedModel
    """

    location: str
    job_toml: str
    spec: JobSpec
    manifest: Mapping[str, Any]
    labels: LabelSchema
    reasons: Mapping[str, int]
    solved: Mapping[str, int]
    n_bytes: int
    n_rows: int
    n_points: int
    dimension: int
    num_nodes: IntArray
    transport_cost: FloatMatrix
    variance: Variance | None
    points: Points | None
    approximation: Approximation | None
    n_large_pairs: int
    graph_map: GraphMap | None
    trained: list[TrainedModel]


def read_content(folder: RunFolder, *, read: Callable[[], object] = lambda: None) -> ReportContent:
    """Read what a report shows of a finished run.

    Parameters
    ----------
    folder : RunFolder
    read : callable
        Called after each of `READ_STEPS` steps.

    Raises
    ------
    WeglError
        If the run has not finished, or something in it is missing or damaged.
    """
    job_toml = folder.job_toml()
    spec = JobSpec.from_toml(job_toml, where=folder.location(JOB_NAME))
    rows = RunRows.open(folder.url, folder.storage_options)
    current = data_fingerprint(folder)
    records = folder.records()
    reasons: Counter[str] = Counter()
    solved: Counter[str] = Counter()
    for record in records:
        reasons.update(record.extra.get("reasons", {}))
        solved.update(record.extra.get("solved", {}))
    read()
    approximation, n_large_pairs = _approximation(folder, rows)
    read()
    sampled = rows.values(spread(rows.n_rows, ROW_SAMPLE), ("num_nodes", "transport_cost"))
    read()
    points = _points(folder, rows)
    read()
    graph_map = _graph_map(rows)
    read()
    return ReportContent(
        location=folder.location(),
        job_toml=job_toml,
        spec=spec,
        manifest=_manifest(folder),
        labels=rows.form.labels,
        reasons=dict(reasons.most_common()),
        solved=dict(solved.most_common()),
        n_bytes=sum(file.n_bytes for record in records for file in record.files if file.folder == "data"),
        n_rows=rows.n_rows,
        n_points=rows.form.n_points,
        dimension=rows.form.dimension,
        num_nodes=sampled.column("num_nodes").to_numpy(),
        transport_cost=sampled.column("transport_cost").to_numpy(),
        variance=_variance(folder, rows),
        points=points,
        approximation=approximation,
        n_large_pairs=n_large_pairs,
        graph_map=graph_map,
        trained=read_trained(folder, current),
    )


def spread(n: int, size: int) -> IntArray:
    """Choose numbers below `n`, ascending and evenly spread: all of them, or `size`.

    Examples
    --------
    >>> spread(10, 4).tolist(), spread(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if n <= size:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, size).round().astype(np.int64))


class _Stage(BaseModel):
    seconds: NonNegativeFloat | None
    part_seconds: NonNegativeFloat


class _Manifest(BaseModel):
    """What a report takes of manifest.json."""

    versions: dict[str, str]
    stages: dict[str, _Stage]


def _manifest(folder: RunFolder) -> Mapping[str, Any]:
    manifest = folder.read_manifest()
    try:
        _Manifest.model_validate(manifest, strict=True)
    except ValidationError as error:
        raise WeglError(
            f"{folder.location(MANIFEST_NAME)} is damaged: {first_problem(error)}. Run the job again"
        ) from error
    return manifest


def _variance(folder: RunFolder, rows: RunRows) -> Variance | None:
    if folder.read_if_there(MODEL_JSON) is None:
        return None
    projection = rows.model.points.projection
    if projection.components is None or not projection.total_variance > 0:
        return None
    return Variance(projection.variances / projection.total_variance)


def _points(folder: RunFolder, rows: RunRows) -> Points | None:
    graphs = _sampled_graphs(folder, rows)
    if not len(graphs) or rows.model.dimension < 2:
        return None
    points = rows.points(graphs).points
    sample, reference = points[spread(len(points), POINT_SAMPLE)], rows.model.reference
    if rows.model.points.projection.components is None:
        centre = sample.mean(axis=0)
        _, _, axes = _leading_components(sample - centre)
        sample, reference = (sample - centre) @ axes.T, (reference - centre) @ axes.T
    return Points(sample=sample[:, :2], reference=reference[:, :2], n_graphs=len(graphs))


def _approximation(folder: RunFolder, rows: RunRows) -> tuple[Approximation | None, int]:
    """Compare pairs of a sample of graphs; say how many pairs were left out for their size."""
    graphs = _sampled_graphs(folder, rows)
    if len(graphs) < 2:
        return None, 0
    pairs = sample_pairs(len(graphs), PAIR_SAMPLE, seed=0)
    sizes = rows.values(graphs, ("num_nodes",)).column(0).to_numpy().astype(np.int64)
    small = (sizes[pairs].prod(axis=1) <= PAIR_ENTRIES) & (sizes[pairs].max(axis=1) <= PAIR_NODES)
    compared = compare_pairs(rows, graphs[pairs[small]]) if small.any() else None
    return compared, int((~small).sum())


def _sampled_graphs(folder: RunFolder, rows: RunRows) -> IntArray:
    """Choose rows whose points can be computed again; none where the run has not kept its graphs, or its model."""
    has_graphs = any(part_index(name) is not None for name in folder.listing("graphs"))
    if folder.read_if_there(MODEL_JSON) is None or not has_graphs:
        return np.arange(0)
    parts, starts = spread(len(rows.names), SAMPLED_PARTS), rows.part_starts
    each = max(1, GRAPH_SAMPLE // len(parts))
    chosen = [starts[part] + spread(int(starts[part + 1] - starts[part]), each) for part in parts]
    return np.concatenate(chosen)


def _graph_map(rows: RunRows) -> GraphMap | None:
    groups = spread(len(rows.groups), SAMPLED_GROUPS)
    starts = rows.group_starts
    here = np.concatenate([np.arange(starts[group], starts[group + 1]) for group in groups])
    chosen = here[spread(len(here), max(3, min(MAP_SAMPLE, MAP_BYTES // (8 * rows.form.width))))]
    if len(chosen) < 3:
        return None
    vectors = rows.take(chosen).astype(np.float64)
    vectors -= vectors.mean(axis=0)
    total = float(np.vdot(vectors, vectors))
    left, singular, _ = _leading_components(vectors)
    shares = singular**2 / total if total > 0 else np.zeros(2)
    return GraphMap(
        places=left * singular,
        explained=(float(shares[0]), float(shares[1])),
        rows=rows.values(chosen, ("graph_id", "label", "num_nodes", "transport_cost")),
    )


def _leading_components(centred: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix, FloatMatrix]:
    """Find the first two singular vectors and values, left (n, 2), (2,) and right (2, d), whatever the shape (n, d)."""
    from sklearn.utils.extmath import randomized_svd  # noqa: PLC0415  scikit-learn is slow to import

    n, d = centred.shape
    # Rows and columns of zeros change nothing, and one row or column alone has one component.
    filled = centred if min(n, d) >= 2 else np.pad(centred, ((0, max(0, 2 - n)), (0, max(0, 2 - d))))
    left, singular, right = randomized_svd(filled, 2, random_state=0)
    return left[:n], singular, right[:, :d]
