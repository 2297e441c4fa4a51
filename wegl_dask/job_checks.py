"""Keys of a job file that cannot go together, whatever the data."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wegl_dask.stores import secret_in, secret_refusal

if TYPE_CHECKING:
    from wegl_dask.spec import JobSpec

MOLECULES = ("smiles", "sdf")
"""Kinds of source whose graphs are molecules."""

LARGEST_INTEGER = 2**63 - 1
"""That TOML has, and what Dask and Arrow count with."""

NODES_A_POINT, MOST_REFERENCE_NODES = 10_000, 1_000_000
"""Node embeddings that a reference is computed from, for each of its points and in all, where the job does not say."""

MODEL_KEYS = ("seed", "nodes", "edges", "diffusion", "projection", "reference", "transport")
"""Keys and tables that shape the embedding: where a model is given they are the model's."""

TAKEN_COLUMNS = frozenset(
    {
        *("graph_id", "source_file", "source_row", "label", "split"),
        *("num_nodes", "edge_source", "edge_target"),
        *("node_categories", "node_attributes", "edge_categories", "edge_attributes"),
        *("transport_cost", "solver", "regularisation", "embedding"),
    }
)
"""Columns of every graph shard and of every embedding part: no name for a column that is passed through."""

MAX_WIDE_COLUMNS = 10_000
"""Columns that vectors may have in the layout "wide": beyond that, Parquet's footer outweighs the data and readers crawl."""


def contradictions(spec: "JobSpec") -> Iterator[str]:
    """Find what a job asks for and no data can give: one clause each, which names the keys and what to do.

    Parameters
    ----------
    spec : JobSpec
        Each of its keys is allowed by itself.
    """
    yield from _secrets(spec.model_dump())
    yield from _integers(spec.model_dump())
    yield from _repeated_names(spec)
    yield from _source(spec)
    yield from _labels(spec)
    yield from _node_features(spec)
    yield from _edge_features(spec)
    yield from _fit(spec)
    yield from _model(spec)
    yield from _cluster(spec)


def _secrets(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _secrets(value, f"{prefix}{key}.")
        for url in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
            found = secret_in(str(url))
            if found is not None:
                yield secret_refusal(found, f"{prefix}{key}")


def _integers(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _integers(value, f"{prefix}{key}.")
        elif isinstance(value, int) and value > LARGEST_INTEGER:
            yield f"{prefix}{key} = {value}: it must be {LARGEST_INTEGER} at most"


def _repeated_names(spec: "JobSpec") -> Iterator[str]:
    lists = {"nodes.features": spec.nodes.features}
    columns = ("targets", "extra_columns", "columns")
    attributes = ("node_labels", "node_attributes", "edge_labels", "edge_attributes")
    for name in (*columns, *attributes):
        lists[f"source.{name}"] = getattr(spec.source, name, None)
    for key, names in lists.items():
        for name in dict.fromkeys(name for i, name in enumerate(names or []) if name in (names or [])[:i]):
            yield f'{key} names "{name}" twice: name it once'


def _source(spec: "JobSpec") -> Iterator[str]:
    source: Any = spec.source
    if source.kind == "pyg" and not source.trust:
        yield (
            'source.kind = "pyg" loads files that run code: set source.trust = true if you trust where they come from'
        )
    if source.kind not in MOLECULES:
        return
    for name in source.extra_columns:
        if name in TAKEN_COLUMNS:
            yield f'source.extra_columns: "{name}" is the name of a column that every part has; rename it in the input'
        elif spec.output.layout == "wide" and spec.model.path is None and is_of_vector(name, most_entries(spec)):
            yield f"source.extra_columns: {of_vector_refusal(name)}"
    if source.kind == "smiles" and source.columns is not None:
        yield from _named_columns(source, source.columns)


def most_entries(spec: "JobSpec") -> int:
    """Say how long a vector may be that is written in the layout "wide", as far as the job tells."""
    points = 1 if spec.reference.kind == "origin" else spec.reference.points
    components = spec.projection.components
    return MAX_WIDE_COLUMNS if points is None or components is None else points * components


def is_of_vector(name: str, n_entries: int) -> bool:
    """Whether a column may be that of an entry of a vector of so many entries, in the layout "wide"."""
    return re.fullmatch("e[0-9]{4}", name) is not None and int(name[1:]) < n_entries


def of_vector_refusal(name: str) -> str:
    """Say that a column has the name of one of the vector."""
    return (
        f'"{name}" is the name of a column of the vector where output.layout = "wide"; rename it in the input, or set '
        'output.layout = "list"'
    )


def _named_columns(source: Any, columns: Sequence[str]) -> Iterator[str]:
    """Look for the columns of a file without a header among the names that the job gives them."""
    lookup = source.lookup
    if source.smiles_column not in columns:
        yield _not_a_column("source.smiles_column", source.smiles_column)
    if lookup is not None and lookup.on not in columns:
        yield _not_a_column("source.lookup.on", lookup.on)
    if lookup is not None and lookup.columns is None:
        return
    there = {*columns, *(lookup.columns if lookup is not None else ())}
    for key in ("id_column", "split_column"):
        name = getattr(source, key)
        if name is not None and name not in there:
            yield _not_a_column(f"source.{key}", name)
    for key in ("targets", "extra_columns"):
        yield from (_not_a_column(f"source.{key}", name) for name in getattr(source, key) if name not in there)


def _not_a_column(key: str, name: str) -> str:
    return f'{key} names "{name}", which is not in source.columns: correct either'


def _labels(spec: "JobSpec") -> Iterator[str]:
    source: Any = spec.source
    task = spec.task
    if task in {"auto", "none"}:
        return
    if source.kind in MOLECULES and not source.targets:
        yield f'task = "{task}" needs labels: name their columns in source.targets, or set task = "none"'
    if source.kind in MOLECULES and len(source.targets) > 1 and task != "multitask":
        yield (
            f'task = "{task}" needs one label a graph, and source.targets names {len(source.targets)}: '
            'set task = "multitask", or name one'
        )
    if source.kind == "networkx" and source.label is None:
        yield f'task = "{task}" needs labels: name the graph attribute in source.label, or set task = "none"'


def _node_features(spec: "JobSpec") -> Iterator[str]:
    source: Any = spec.source
    for feature in spec.nodes.features or ():
        asks = f'nodes.features asks for "{feature}"'
        if feature == "attributes" and _is_molecular(source):
            yield f'{asks}, and atoms have none: use "atom_embedding", "labels" or "degrees"'
        if feature == "atom_embedding" and source.kind in {"tud", "networkx"}:
            yield f'{asks}, which is made for the atoms of molecules, and source.kind = "{source.kind}" has none'
        if source.kind == "networkx" and feature in {"labels", "attributes"} and not getattr(source, f"node_{feature}"):
            yield f"{asks}: name the node attributes in source.node_{feature}"


def _edge_features(spec: "JobSpec") -> Iterator[str]:
    source: Any = spec.source
    feature = spec.edges.features
    asks = f'edges.features = "{feature}"'
    if feature in {"attributes", "weight"} and _is_molecular(source):
        yield f'{asks}, and bonds have no attributes: use "labels" or "none"'
    if source.kind != "networkx":
        return
    if feature == "labels" and not source.edge_labels:
        yield f"{asks}: name the edge attributes in source.edge_labels"
    if feature == "attributes" and not source.edge_attributes:
        yield f"{asks}: name the edge attributes in source.edge_attributes"
    if feature == "weight" and len(source.edge_attributes) != 1:
        yield f"{asks} needs one attribute in source.edge_attributes, which names {len(source.edge_attributes)}"


def _fit(spec: "JobSpec") -> Iterator[str]:
    source: Any = spec.source
    reference = spec.reference
    if spec.projection.fit_on == "train":
        asks = 'projection.fit_on = "train" needs graphs with a split'
        if source.kind == "tud":
            yield f'{asks}, and source.kind = "tud" has none: set it to "all"'
        if source.kind in MOLECULES and source.split_column is None:
            yield f'{asks}: name its column in source.split_column, or set it to "all"'
        if source.kind == "networkx" and source.split is None:
            yield f'{asks}: name the graph attribute in source.split, or set it to "all"'
    components = spec.projection.components
    if spec.nodes.features == ["atom_embedding"] and components is not None:
        repeats = spec.diffusion.layers + 1 if spec.diffusion.pooling == "concat" else 1
        width = repeats * spec.nodes.atom_embedding_width
        if components > width:
            yield (
                f"projection.components = {components}, and the node embeddings have {width} columns "
                f"(nodes.atom_embedding_width): set it to {width} at most"
            )
    if reference.kind == "origin" and reference.points not in {None, 1}:
        yield f'reference.kind = "origin" is one point, and reference.points = {reference.points}: leave out the latter'
    max_nodes = MOST_REFERENCE_NODES if reference.max_nodes is None else reference.max_nodes
    if reference.kind in {"kmeans", "sample"} and (reference.points or 0) > max_nodes:
        yield (
            f"reference.points = {reference.points} cannot be found among reference.max_nodes = {max_nodes} node "
            "embeddings: raise the latter"
        )


def _model(spec: "JobSpec") -> Iterator[str]:
    if spec.model.path is None:
        if spec.model.sha256 is not None:
            yield "model.sha256 is of the model in model.path, which is not set: set both or neither"
        return
    for key in MODEL_KEYS:
        if key in spec.model_fields_set:
            yield f"{key} is the model's where model.path is set: take either out"


def _cluster(spec: "JobSpec") -> Iterator[str]:
    cluster = spec.cluster
    if (cluster.kind == "scheduler") != (cluster.address is not None):
        yield 'cluster.address and cluster.kind = "scheduler" go together: set both or neither'
    if (cluster.tls_ca_file is None) != (cluster.tls_cert is None):
        yield "cluster.tls_ca_file and cluster.tls_cert go together: set both or neither"
    if cluster.tls_key is not None and cluster.tls_cert is None:
        yield "cluster.tls_key is the key of cluster.tls_cert, which is not set: set both"


def _is_molecular(source: Any) -> bool:
    """Whether the nodes are atoms, which have categories and no attributes, as their bonds do."""
    return source.kind in MOLECULES or (source.kind == "ogb" and source.name.startswith("ogbg-mol"))
