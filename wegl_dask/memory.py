"""What a worker's memory must hold in each stage, from the sizes of the job, and the refusal of what cannot fit.

Notes
-----
All in bytes, for the largest shard with G graphs, n points (virtual nodes included), e listed edges (those of virtual
nodes included), K blocks of raw columns, E edge attributes and F columns of edge labels; for node embeddings with w
columns whose moments are taken, d coordinates of a point, N reference points, m points in the sample and
p = N * (points of the largest graph) pairs of points:

==========  ============================================================================================
ingest      B + (135 + 25 E + 8 F) e + (100 + 24 K) n + 2000 S, for the plan of S shards
moments     B + 60 e' + 30 K n' + 8 * 3.2 b, and 3 * 8 w^2 with a scatter matrix; b = min(4e6, w n) entries
            of a block (of the largest graph, up to 16e6, where that is more), e' and n' its part of the shard
merge       B + 4 * 8 w^2
sketch      B + 60 e + (32 q + 30 K) n + 48 q w, for q random directions: an array each, counted and not measured
projection  B + 4 * 8 w^2, or B + 48 q w
sample      B + 60 e + (16 d + 30 K) n
reference   B + 4 d m for k-means, B + 8 d m for all others
embed       B + 60 e + (40 d + 30 K) n + 24 min(4e6, G N d) + 14 min(16.8e6, G N d) + 56 p; with an entropic solver
            56 max(131072, auto_size) at most, the largest graph that an exact plan may be looked for
==========  ============================================================================================

Where a stage reads a shard, (15 E + 4 F) e come to that, and with edges.features = "labels" what the column of edge
labels takes that takes most: 25 e + 24 c n for c labels (in the stage moments for e' and n'), and 90 e where there are
more than `wegl_dask.diffusion.LOOKED_UP`.

A projection, which the stages from projection on hold, adds 8 (4 + d) W for W columns, those of categories that do not
occur included. B = 150 MB are a worker with what it imports. For k-means, each stage from moments on has R = 170 MB
more: what it imports stays with the worker that does it. The command's workers on its own machine are forks
(`wegl_dask.fork_server`), which hold less of both, 100 and 120 MB. The factors were measured, as the peak of a process
over what it held before, on data sets of 2 to 133 listed edges a node and of 4 to 4,000 columns. Beyond what a stage
needs, a worker keeps what it has freed: see `kept_bytes`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wegl_dask.diffused_columns import GRAPH_ENTRIES
from wegl_dask.diffusion import LOOKED_UP, EdgeFeature
from wegl_dask.embeddings import ROW_GROUP_BYTES
from wegl_dask.errors import MORE_MEMORY, JobFileError
from wegl_dask.freed_memory import ROOM
from wegl_dask.graphs import BLOCK_ENTRIES, GraphSchema
from wegl_dask.progress import format_bytes
from wegl_dask.reference import ReferenceKind, sample_dtype
from wegl_dask.transport import Solver, largest_exact
from wegl_dask.worker_environment import KEPT_BYTES, MAPPED_BYTES


class Imported(NamedTuple):
    """What a worker holds of what it imports, in bytes: when it is ready, and more if it does k-means."""

    worker: int
    kmeans: int


STARTED_ANEW = Imported(150_000_000, 170_000_000)
FORKED = Imported(100_000_000, 120_000_000)

KEPT_SHARE = 0.5
"""Part of what other stages have freed that the stage which needs most does not use again."""

PLANNED_SHARD_BYTES = 2_000
EXACT_PAIR_BYTES = 56

_IMPORTED = "what k-means imports"
_SAMPLE = "the sample for the reference"

Terms = dict[str, float]
"""What is in memory at a stage's peak: bytes by what they hold."""

USABLE = 0.95
"""Part of a worker's memory limit at which Dask ends the worker."""

_ADVICE = {
    "the graphs of a shard": "lower source.nodes_per_shard",
    "the points of a shard": "lower source.nodes_per_shard or projection.components",
    "the vectors of a shard": "lower source.nodes_per_shard, reference.points or projection.components",
    "the node embeddings of a block": "lower source.nodes_per_shard or source.max_nodes",
    "the statistics of all categories": "number the categories of the graphs 0, 1, 2, ...",
    "the scatter matrix": "lower nodes.degree_clip or diffusion.layers, or leave out projection.components",
    _SAMPLE: "lower reference.max_nodes, or reference.graphs for a barycenter",
    "the costs and the plan of the largest graph": 'set transport.solver = "auto", or lower source.max_nodes',
}


@dataclass(frozen=True)
class Extent:
    """The largest shard of a collection, and the largest graph.

    Attributes
    ----------
    graphs, points, edges : int
        Virtual nodes and their edges are counted.
    largest_graph : int
        Points of the largest graph.
    """

    graphs: int
    points: int
    edges: int
    largest_graph: int

    @classmethod
    def of_shards(cls, shards: Mapping[int, Mapping[str, int]], *, virtual_node: bool) -> "Extent":
        """Take the largest of each from what the ingest noted of every shard."""
        return cls(
            graphs=max(shard["graphs"] for shard in shards.values()),
            points=max(shard["nodes"] + virtual_node * shard["graphs"] for shard in shards.values()),
            edges=max(shard["edges"] + 2 * virtual_node * shard["nodes"] for shard in shards.values()),
            largest_graph=max(shard["largest_graph"] for shard in shards.values()) + virtual_node,
        )


@dataclass(frozen=True)
class Features:
    """What the graphs carry, and what is made of it.

    Attributes
    ----------
    schema : GraphSchema
        Attributes and labels of edges are held whether they are used or not.
    blocks : int
        Blocks of raw columns of the nodes.
    edges : {"none", "labels", "attributes", "weight"}
    """

    schema: GraphSchema
    blocks: int
    edges: EdgeFeature

    def stored_bytes(self, shard: Extent) -> int:
        """Add up what a shard's edges carry, as a stage reads it."""
        return (15 * self.schema.edge_attribute_width + 4 * len(self.schema.edge_category_counts)) * shard.edges

    def operator_bytes(self, shard: Extent) -> int:
        """Add up a shard's graphs, without what their edges carry, and their propagation operator."""
        counts = self.schema.edge_category_counts if self.edges == "labels" else ()
        of_labels = (
            25 * shard.edges + 24 * count * shard.points if count <= LOOKED_UP else 90 * shard.edges for count in counts
        )
        return 60 * shard.edges + 30 * self.blocks * shard.points + max(of_labels, default=0)

    def graph_bytes(self, shard: Extent) -> int:
        """Add up a shard's graphs and their propagation operator."""
        return self.stored_bytes(shard) + self.operator_bytes(shard)


def ingest_terms(shard: Extent, schema: GraphSchema, n_shards: int) -> Terms:
    """Add up the stage ingest."""
    node_columns = len(schema.node_category_counts) + schema.node_attribute_width
    of_edge = 135 + 25 * schema.edge_attribute_width + 8 * len(schema.edge_category_counts)
    return {
        "the graphs of a shard": of_edge * shard.edges + (100 + 24 * node_columns) * shard.points,
        "the plan of all shards": PLANNED_SHARD_BYTES * n_shards,
    }


def moments_terms(shard: Extent, features: Features, width: int, *, scatter: bool) -> Terms:
    """Add up the stage moments, for node embeddings of `width` columns."""
    of_largest_graph = min(GRAPH_ENTRIES, width * shard.largest_graph)
    block = max(min(BLOCK_ENTRIES, width * shard.points), of_largest_graph if scatter else 0)
    part = min(1.0, block / max(1, width * shard.points))
    return {
        "the graphs of a shard": features.stored_bytes(shard) + part * features.operator_bytes(shard),
        "the node embeddings of a block": 8 * 3.2 * block,
        "the scatter matrix": 3 * 8 * width**2 if scatter else 0,
    }


def scatter_terms(width: int, *, scatter: bool) -> Terms:
    """Add up the stages merge and projection."""
    return {"the scatter matrix": 4 * 8 * width**2 if scatter else 4 * 8 * width}


def sketch_terms(shard: Extent | None, features: Features, width: int, n_directions: int) -> Terms:
    """Add up the products with random directions, in the stage sketch for a shard, and in the stage projection."""
    if not n_directions:
        return {}
    products: Terms = {"the products with random directions": 8 * 6 * width * n_directions}
    if shard is None:
        return products
    return {
        "the graphs of a shard": features.graph_bytes(shard),
        "the directions diffused": 8 * 4 * n_directions * shard.points,
        **products,
    }


def projection_terms(width: int, components: int | None) -> Terms:
    """Add up a projection of `width` columns, those of categories that do not occur included, as whoever uses it holds it."""
    return {"the statistics of all categories": 8 * (4 + (components or 0)) * width}


def sample_terms(shard: Extent, features: Features, dimension: int) -> Terms:
    """Add up the stage sample."""
    return {
        "the graphs of a shard": features.graph_bytes(shard),
        "the points of a shard": 16 * dimension * shard.points,
    }


def kmeans_terms(imported: Imported = STARTED_ANEW) -> Terms:
    """Add up what k-means imports, on the worker that will do it."""
    return {_IMPORTED: imported.kmeans}


def reference_terms(sample: int, dimension: int, kind: ReferenceKind) -> Terms:
    """Add up the stage reference, for a sample of so many points."""
    return {_SAMPLE: sample_dtype(kind)().itemsize * dimension * sample}


def embed_terms(
    shard: Extent, features: Features, dimension: int, n_points: int, *, solver: Solver, auto_size: int
) -> Terms:
    """Add up the stage embed."""
    vectors = shard.graphs * n_points * dimension
    pairs = n_points * shard.largest_graph
    return {
        "the graphs of a shard": features.graph_bytes(shard),
        "the points of a shard": 40 * dimension * shard.points,
        "the vectors of a shard": 24 * min(BLOCK_ENTRIES, vectors) + 14 * min(ROW_GROUP_BYTES // 4, vectors),
        "the costs and the plan of the largest graph": EXACT_PAIR_BYTES * min(pairs, largest_exact(solver, auto_size)),
    }


def total_bytes(terms: Terms, imported: Imported = STARTED_ANEW) -> int:
    """Sum of the terms of a stage and of the worker itself."""
    return imported.worker + int(sum(terms.values()))


def kept_bytes(stages: Mapping[str, Terms], limit: int | None, imported: Imported = STARTED_ANEW) -> int:
    """Estimate what a worker keeps of freed memory in the stage that needs most.

    It is half of what the other stages had (the rest is used again), as far as the C library does not give it back and
    there is room within the worker's memory limit (see `wegl_dask.freed_memory`). The sample for a reference is one block,
    and a large one is given back.
    """
    needed = {stage: total_bytes(terms, imported) for stage, terms in stages.items()}
    largest = max(needed, key=lambda stage: needed[stage])
    freed = sum(
        size
        for stage, terms in stages.items()
        if stage != largest
        for what, size in terms.items()
        if what != _IMPORTED and not (what == _SAMPLE and size > MAPPED_BYTES)
    )
    room = math.inf if limit is None else max(0.0, ROOM * limit - needed[largest])
    return int(min(KEPT_SHARE * freed, KEPT_BYTES, room))


def require_fitting(stages: Mapping[str, Terms], limit: int, imported: Imported = STARTED_ANEW) -> None:
    """Refuse a job of which a stage needs more than a worker may have, by its memory limit in bytes.

    Raises
    ------
    JobFileError
        It names the stage, both numbers, what takes most, and what to do.
    """
    for stage, terms in stages.items():
        needed = total_bytes(terms, imported)
        if needed > USABLE * limit:
            largest = max(terms, key=lambda name: terms[name])
            raise JobFileError(
                f"the stage {stage} needs about {format_bytes(needed)} of memory a worker, and a worker has "
                f"{format_bytes(limit)}: {MORE_MEMORY}, or {_ADVICE.get(largest, 'use larger workers')} "
                f"({largest} would take {format_bytes(terms[largest])})"
            )
