"""Graph batches from and to torch_geometric, networkx and plain edge lists."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import MissingDependencyError
from wegl_dask.graphs import FloatArray, GraphBatch, GraphSchema, IntArray
from wegl_dask.labelled_graphs import AttributeNames, Vocabularies, labelled_graph
from wegl_dask.plain_graphs import (
    PlainGraph,
    UnusableGraphError,
    join_graphs,
    naming_graph,
    plain_graph,
    unmasked,
    whole_number,
)

NODE_FIELDS = ("x", "node_categories", "node_attributes")
EDGE_FIELDS = ("edge_attr", "edge_categories", "edge_attributes")
"""Fields of torch_geometric graphs that hold features: of either kind, of integers, of real numbers."""

_SPLIT_FIELDS = (*NODE_FIELDS, *EDGE_FIELDS, "edge_index", "edge_weight", "y")
"""Fields of a torch_geometric Batch that must come back whole from its graphs."""


def from_edge_lists(
    graphs: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]], schema: GraphSchema | None = None
) -> GraphBatch:
    """Make a batch of pairs of an edge list and node features.

    Parameters
    ----------
    graphs : iterable of (edge_index, x)
        ``edge_index`` is (2, n_edges), sources in the first row; ``x`` is (n_nodes, n_features) or (n_nodes,).
        Features of whole numbers are categories, features of real numbers are attributes.
    schema : GraphSchema, optional
        Taken from the data by default: as many features as the first graph has, vocabularies up to the largest
        category that occurs.

    Raises
    ------
    UnusableGraphError
        If an array has the wrong shape or type, or the features differ; the message has the graph's index.

    Examples
    --------
    >>> batch = from_edge_lists([([[0, 1], [1, 2]], [[3], [0], [1]]), ([[], []], [[2]])])
    >>> batch.node_counts, batch.schema.node_category_counts
    (array([3, 1]), (4,))
    """
    plain = []
    for index, pair in enumerate(graphs):
        with naming_graph(index):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise _unexpected(pair, "a pair (edge_index, x) is needed")
            edge_index, x = pair
            plain.append(plain_graph(edge_index, {"x": x}, {}))
    return join_graphs(plain, schema)


def from_pyg(data_list: Iterable[Any], schema: GraphSchema | None = None) -> GraphBatch:
    """Make a batch of torch_geometric graphs.

    Parameters
    ----------
    data_list : iterable of torch_geometric.data.Data
        See `pyg_graph` for the fields that are read. A torch_geometric Batch, alone or in the iterable as a DataLoader
        yields it, is the graphs that it was made of.
    schema : GraphSchema, optional
        Taken from the data by default, see `from_edge_lists`.

    Raises
    ------
    UnusableGraphError
        If a field is missing, or has the wrong shape or type, or the features differ, or a Batch cannot be taken apart;
        the message has the graph's index.
    """
    if is_pyg_graph(data_list) and not is_pyg_batch(data_list):
        raise single_graph(data_list)
    plain = []
    for index, data in enumerate(each_graph(data_list)):
        with naming_graph(index):
            if not is_pyg_graph(data):
                raise _unexpected(data, "a torch_geometric Data, or a Batch of them, is needed")
            plain.append(pyg_graph(data.to_dict()))
    return join_graphs(plain, schema)


def each_graph(items: Iterable[Any]) -> Iterator[Any]:
    """Go through a collection graph by graph: a torch_geometric Batch, as a whole or as an item, is its graphs.

    Raises
    ------
    UnusableGraphError
        If a Batch cannot be taken apart; the message has its place in the collection.
    """
    for place, item in enumerate(split_batch(items) if is_pyg_batch(items) else items):
        if not is_pyg_batch(item):
            yield item
            continue
        try:
            graphs = split_batch(item)
        except UnusableGraphError as error:
            raise UnusableGraphError(f"item {place}: {error}") from error
        yield from graphs


def is_pyg_graph(item: Any) -> bool:
    """Tell a torch_geometric Data, without importing torch_geometric."""
    # Of a data set edge_index is that of all its graphs, which are joined for it: it is asked for last.
    return hasattr(item, "to_dict") and hasattr(item, "edge_index")


def is_networkx_graph(item: Any) -> bool:
    """Tell a networkx graph, without importing networkx."""
    return hasattr(item, "is_directed") and hasattr(item, "adj")


def single_graph(item: Any) -> UnusableGraphError:
    """Say that a graph was given where many are needed; what it is made of would be read as graphs."""
    return UnusableGraphError(f"this is a single graph, of type {type(item).__name__}: put it in a list")


def is_pyg_batch(item: Any) -> bool:
    """Tell a torch_geometric Batch from a single graph, without importing torch_geometric."""
    # Of its type: what older versions of torch_geometric have saved has no attributes that can be asked for.
    return hasattr(type(item), "to_data_list")


def split_batch(batch: Any) -> list[Any]:
    """Take a torch_geometric Batch apart into the graphs that it was made of.

    Raises
    ------
    UnusableGraphError
        If it does not know where its graphs begin and end, or no longer, since it was changed as a whole.
    """
    advice = "give its graphs themselves, as a list of Data, or a Batch as Batch.from_data_list makes it of them"
    try:
        graphs = list(batch.to_data_list())
    # What it lacks, or has of another size than when it was made, shows in any of these ways.
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        what = " ".join(str(error).split())
        raise UnusableGraphError(
            f"the Batch of torch_geometric cannot be taken apart into its graphs ({type(error).__name__}: {what}): {advice}"
        ) from error
    for name in _SPLIT_FIELDS:
        whole = getattr(batch, name, None)
        if whole is not None and _size(whole) != sum(_size(getattr(graph, name, None)) for graph in graphs):
            raise UnusableGraphError(
                f"{name} of the Batch of torch_geometric was changed after the Batch was made, so that it cannot be taken "
                f"apart into its graphs: {advice}"
            )
    return graphs


def pyg_graph(fields: Mapping[str, Any]) -> PlainGraph:
    """Read one torch_geometric graph from its fields, ``data.to_dict()``.

    Node features are ``x``, edge features ``edge_attr``; where there is none, ``edge_weight`` is one attribute of the
    edges. Integers are categories, real numbers are attributes. A graph that has both kinds has them as
    ``node_categories`` and ``node_attributes``, ``edge_categories`` and ``edge_attributes``, as `to_pyg` writes them.
    Without node features ``num_nodes`` is needed. Other fields are not looked at.

    Raises
    ------
    UnusableGraphError
        If a field is missing, or has the wrong shape or type, or the fields are of several graphs that were joined.
    """
    edge_index = fields.get("edge_index")
    if edge_index is None:
        raise UnusableGraphError("edge_index is missing; a graph without edges has one of shape (2, 0)")
    edge_features = _arrays(fields, EDGE_FIELDS)
    if not edge_features:
        edge_features = {name: w.astype(np.float64) for name, w in _arrays(fields, ("edge_weight",)).items()}
    n_nodes = fields.get("num_nodes")
    graph = plain_graph(
        _to_numpy("edge_index", edge_index),
        _arrays(fields, NODE_FIELDS),
        edge_features,
        None if n_nodes is None else whole_number("num_nodes", n_nodes),
    )
    _refuse_joined(fields, graph.n_nodes)
    return graph


def to_pyg(batch: GraphBatch) -> list[Any]:
    """Make torch_geometric graphs of a batch; `from_pyg` reads them back.

    Returns
    -------
    list of torch_geometric.data.Data
        ``x`` holds the categories (int64) or the attributes (float) of the nodes, (n_nodes, number of features);
        where there are both they are in ``node_categories`` and ``node_attributes``, where there are none
        ``num_nodes`` is set. Edges likewise, ``edge_attr`` or ``edge_categories`` and ``edge_attributes``.

    Raises
    ------
    ValueError
        If the batch has virtual nodes, which have no categories.
    MissingDependencyError
        If torch_geometric is not installed.
    """
    if batch.has_virtual_nodes:
        raise ValueError("virtual nodes have no categories; convert the batch as it was before they were added")
    torch, data_class = import_pyg()
    node_counts, edge_counts = batch.node_counts.tolist(), batch.edge_counts.tolist()
    edge_index = np.stack([batch.edge_source, batch.edge_target]).astype(np.int64)
    columns = {
        "edge_index": torch.tensor(edge_index).split(edge_counts, dim=1),
        **_pyg_features(torch, NODE_FIELDS, batch.node_categories, batch.node_attributes, node_counts),
        **_pyg_features(torch, EDGE_FIELDS, batch.edge_categories, batch.edge_attributes, edge_counts),
    }
    if not set(columns) & set(NODE_FIELDS):
        columns["num_nodes"] = node_counts
    return [data_class(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


def from_networkx(
    graphs: Iterable[Any],
    *,
    node_labels: str | Sequence[str] = (),
    node_attributes: str | Sequence[str] = (),
    edge_labels: str | Sequence[str] = (),
    edge_attributes: str | Sequence[str] = (),
    vocabularies: Vocabularies | None = None,
) -> GraphBatch:
    """Make a batch of networkx graphs, directed or not, simple or multigraphs, with node names of any kind.

    Nodes are numbered in the order that the graph lists them. Every edge of an undirected graph is listed in both
    directions, so that it is read alike whatever is said of the direction of edges later on.

    Parameters
    ----------
    graphs : iterable of networkx.Graph
    node_labels, edge_labels : str or sequence of str
        Attributes that become categories: texts, numbers or booleans.
    node_attributes, edge_attributes : str or sequence of str
        Attributes that become real-valued features.
    vocabularies : Vocabularies, optional
        The values of every categorical feature; those that occur in `graphs` by default.

    Raises
    ------
    UnusableGraphError
        If a node or an edge lacks an attribute, or its value is of no use or not in the vocabulary; the message has
        the graph's index and the name of the node.
    """
    if is_networkx_graph(graphs):
        raise single_graph(graphs)
    names = AttributeNames(*map(_names, (node_labels, node_attributes, edge_labels, edge_attributes)))
    labelled = []
    for index, graph in enumerate(graphs):
        with naming_graph(index):
            if not is_networkx_graph(graph):
                raise _unexpected(graph, "a networkx graph is needed")
            labelled.append(labelled_graph(graph, names))
    if vocabularies is None:
        vocabularies = Vocabularies.of_graphs(labelled, names)
    plain = []
    for index, graph in enumerate(labelled):
        with naming_graph(index):
            plain.append(vocabularies.number(graph, names))
    return join_graphs(plain, vocabularies.schema(names))


def import_pyg() -> tuple[ModuleType, type[Any]]:
    """Import torch and `torch_geometric.data.Data`.

    Raises
    ------
    MissingDependencyError
        If one of them is not installed.
    """
    try:
        with warnings.catch_warnings():
            # torch_geometric uses what the newest torch advises against, which is nothing the caller can change.
            warnings.simplefilter("ignore", DeprecationWarning)
            import torch  # noqa: PLC0415
            from torch_geometric.data import Data  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError.for_extra("torch-geometric", "datasets") from error
    return torch, Data


def _refuse_joined(fields: Mapping[str, Any], n_nodes: int) -> None:
    """Refuse the fields of a torch_geometric Batch of several graphs, which would pass for one large graph."""
    batch = _arrays(fields, ("batch",)).get("batch", np.empty(0))
    ptr = _arrays(fields, ("ptr",)).get("ptr", np.empty(0))
    n_graphs = len(np.unique(batch)) if batch.shape == (n_nodes,) else 1
    if ptr.ndim == 1 and len(ptr) > 2 and (ptr[0], ptr[-1]) == (0, n_nodes):
        n_graphs = max(n_graphs, len(ptr) - 1)
    if n_graphs > 1:
        raise UnusableGraphError(
            f"these are {n_graphs} graphs joined to one, by the field batch or ptr: give them one by one, as "
            "Batch.to_data_list() does; or leave these fields out, if it is one graph"
        )


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _unexpected(item: Any, needed: str) -> UnusableGraphError:
    entries = f" of {len(item)} entries" if isinstance(item, tuple | list) else ""
    return UnusableGraphError(f"this is of type {type(item).__name__}{entries}; {needed}")


def _size(value: Any) -> int:
    """Count the numbers of a tensor; what is none, such as a text, counts as one for each of its entries in a list."""
    if value is None:
        return 0
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return int(np.prod(value.shape)) if hasattr(value, "shape") else 1


def _arrays(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    return {name: _to_numpy(name, fields[name]) for name in names if fields.get(name) is not None}


def _to_numpy(name: str, tensor: Any) -> npt.NDArray[Any]:
    try:
        if not hasattr(tensor, "detach"):
            return unmasked(name, tensor)
        # NumPy has no bfloat16, and single precision holds all numbers of shorter types.
        is_short = tensor.is_floating_point() and tensor.itemsize < np.dtype(np.float32).itemsize
        return unmasked(name, (tensor.float() if is_short else tensor).detach().cpu())
    except (TypeError, ValueError) as error:
        raise UnusableGraphError(f"{name} cannot be read as a dense array: {error}") from error


def _pyg_features(
    torch: ModuleType, names: Sequence[str], categories: IntArray, attributes: FloatArray, counts: list[int]
) -> dict[str, Sequence[Any]]:
    """Cut features into one tensor a graph, under the one name of a single kind or the two names of both."""
    kinds = [
        (name, torch.tensor(values).split(counts))
        for name, values in zip(names[1:], (categories.astype(np.int64), attributes), strict=True)
        if values.shape[1]
    ]
    if len(kinds) == 1:
        return {names[0]: kinds[0][1]}
    return dict(kinds)
