"""Files of one graph each, read with networkx: GraphML, GML and node-link JSON."""

import importlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

from wegl_dask.errors import MissingDependencyError
from wegl_dask.plain_graphs import UnusableGraphError
from wegl_dask.sources.paths import ending_of

NETWORKX_ENDINGS = (".graphml", ".gml", ".json")
"""Endings of the files that `parse_graph` reads."""


def import_networkx() -> ModuleType:
    """Import networkx.

    Raises
    ------
    MissingDependencyError
        If it is not installed.
    """
    try:
        return importlib.import_module("networkx")
    except ImportError as error:
        raise MissingDependencyError.for_extra("networkx", "datasets") from error


def parse_graph(name: str, content: bytes) -> Any:
    """Read the graph of a file in the format that its ending says.

    Parameters
    ----------
    name : str
        The file's name.
    content : bytes
        What it holds.

    Returns
    -------
    networkx.Graph
        Or a DiGraph, MultiGraph or MultiDiGraph. The nodes of GML are its ids, the labels are an attribute ``label``.
        Node-link JSON always gives one with parallel edges, in the order of the file.

    Raises
    ------
    UnusableGraphError
        If it is not in that format, or an edge has an end that is no node.
    """
    networkx = import_networkx()
    formats: dict[str, tuple[str, Callable[[ModuleType, bytes], tuple[Any, int]]]] = {
        ".graphml": ("GraphML", _parse_graphml),
        ".gml": ("GML", _parse_gml),
        ".json": ("node-link JSON", _parse_node_link),
    }
    if ending_of(name) not in formats:
        raise UnusableGraphError(f"the ending of the file is none of {', '.join(formats)}")
    words, parse = formats[ending_of(name)]
    try:
        with warnings.catch_warnings():
            # What networkx takes for granted is checked when the attributes are read.
            warnings.simplefilter("ignore", UserWarning)
            graph, n_declared = parse(networkx, content)
    # What is not in the format makes networkx's readers fail in any of these ways.
    except (
        *(networkx.NetworkXException, ET.ParseError, RecursionError),
        *(ValueError, TypeError, AttributeError, LookupError, StopIteration),
    ) as error:
        raise UnusableGraphError(f"the file is not {words}: {type(error).__name__}: {error}") from error
    if b"\\u" in content or b"&#" in content:
        _require_text(graph)
    nodes = list(graph)
    if len(nodes) > n_declared:
        raise UnusableGraphError(f"an edge has the end {nodes[n_declared]!r}, which is none of the {n_declared} nodes")
    if len(nodes) < n_declared:
        raise UnusableGraphError(f"the {n_declared} nodes have only {len(nodes)} different ids")
    return graph


def _require_text(graph: Any) -> None:
    """Refuse halves of characters, which formats with numbers for characters can hold and UTF-8 cannot."""
    values = [[*graph.nodes(data=True)], [*graph.edges(data=True)], graph.graph]
    try:
        json.dumps(values, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        what = error.object[error.start : error.end]
        raise UnusableGraphError(f"the file has a text with {what!r}, which is no character: correct it") from error


def _parse_graphml(networkx: ModuleType, content: bytes) -> tuple[Any, int]:
    graph = networkx.read_graphml(io.BytesIO(content))
    # networkx makes nodes of whatever an edge names, and of edges of one id a single one with the attributes of the last;
    # only the text knows which were declared.
    elements = ET.iterparse(io.BytesIO(content))  # noqa: S314  networkx has parsed it with the same parser
    declared = Counter(element.tag.rpartition("}")[2] for _, element in elements)
    if graph.number_of_edges() < declared["edge"]:
        raise UnusableGraphError("two edges that join the same nodes have the same id: give them others, or none")
    return graph, declared["node"]


def _parse_gml(networkx: ModuleType, content: bytes) -> tuple[Any, int]:
    graph = networkx.read_gml(io.BytesIO(content), label=None)
    return graph, len(graph)


def _parse_node_link(networkx: ModuleType, content: bytes) -> tuple[Any, int]:
    values = json.loads(content)
    edges = next((name for name in ("edges", "links") if name in values), None)
    if not isinstance(values, dict) or "nodes" not in values or edges is None:
        raise ValueError('an object with "nodes" and "edges" (or "links") is needed')
    if not isinstance(values.get("graph", {}), dict):
        raise TypeError(f'"graph" is {values["graph"]!r}; an object with the attributes of the graph is needed')
    graph = networkx.node_link_graph({**values, "multigraph": True, edges: []}, edges=edges)
    # networkx would give an edge that is listed twice, or twice with one key, the attributes of the last.
    for edge in values[edges]:
        source, target = (tuple(end) if isinstance(end, list) else end for end in (edge["source"], edge["target"]))
        key = graph.add_edge(source, target)
        attributes = {name: value for name, value in edge.items() if name not in ("source", "target")}
        graph.get_edge_data(source, target, key).update(attributes)
    return graph, len(values["nodes"])
