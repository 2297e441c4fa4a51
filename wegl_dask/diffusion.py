"""The propagation operator of a batch of graphs, and the node embeddings that L layers of it give.

Notes
-----
With scalar edge weights (paper, equation ``eq:wl_diff``)

    x_v^(l) = sum over u in N_v and v itself of  w_uv / sqrt(deg(u) deg(v)) * x_u^(l-1),   deg(v) = 1 + |N_v|

and with E non-negative features an edge (paper, appendix, equation ``eq:wl_diff_binary_edge_features``) the weight of
(u, v) is ``sum_e w_uv,e / sqrt(deg_e(u) deg_e(v))`` with ``deg_e(v) = sum_u w_uv,e``, every self-connection having all
features 1. Both are one sparse matrix S applied L times, so everything up to the principal components is linear in
the initial features.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.errors import SettingsError
from wegl_dask.features import is_virtual
from wegl_dask.graphs import FloatArray, GraphBatch, IntArray

EdgeFeature = Literal["none", "labels", "attributes", "weight"]
Pooling = Literal["concat", "average", "final"]


def propagation_operator(batch: GraphBatch, edge_features: EdgeFeature = "none") -> "scipy.sparse.csr_array":
    """Build the matrix S that propagates node features by one layer.

    Parameters
    ----------
    batch : GraphBatch
        With canonical edges, see `wegl_dask.graphs.canonical_edges`.
    edge_features : {"none", "labels", "attributes", "weight"}
        What an edge weighs: 1; its categories, one-hot over the declared vocabularies; its attributes, one channel
        each; its only attribute, as the scalar weight. An edge of a virtual node weighs 1/|V| in every channel.

    Returns
    -------
    scipy.sparse.csr_array
        float64, (n_nodes, n_nodes), block diagonal over the graphs; row v holds the weights of x_v's sum.

    Raises
    ------
    SettingsError
        If the graphs do not carry the edge features asked for.
    """
    source, target = batch.global_edges()
    hub = is_virtual(batch)
    virtual = hub[source] | hub[target] if batch.has_virtual_nodes else np.zeros(batch.n_edges, dtype=bool)
    n_real = np.repeat(batch.node_counts - batch.has_virtual_nodes, batch.edge_counts)
    spoke_weight = 1.0 / n_real[virtual]
    match edge_features:
        case "none":
            weights, self_weights = _scalar_weights(
                batch.n_nodes, source, target, _fill(np.ones(batch.n_edges), virtual, spoke_weight)
            )
        case "weight":
            if batch.schema.edge_attribute_width != 1:
                raise SettingsError(
                    f'edges.features = "weight" needs one attribute an edge; these graphs have '
                    f"{batch.schema.edge_attribute_width}"
                )
            given = batch.edge_attributes[:, 0].astype(np.float64)
            weights, self_weights = _scalar_weights(batch.n_nodes, source, target, _fill(given, virtual, spoke_weight))
        case "attributes":
            if not batch.schema.edge_attribute_width:
                raise SettingsError('edges.features = "attributes": these graphs have no edge attributes')
            channels = (_fill(column.astype(np.float64), virtual, spoke_weight) for column in batch.edge_attributes.T)
            weights, self_weights = _channel_weights(batch.n_nodes, source, target, channels)
        case "labels":
            if not any(batch.schema.edge_category_counts):
                raise SettingsError('edges.features = "labels": these graphs have no edge labels')
            weights, self_weights = _label_weights(batch, source, target, virtual, spoke_weight)
    diagonal = np.arange(batch.n_nodes)
    return scipy.sparse.csr_array(
        (
            np.concatenate([weights, self_weights]),
            (np.concatenate([target, diagonal]), np.concatenate([source, diagonal])),
        ),
        shape=(batch.n_nodes, batch.n_nodes),
    )


def pooled(
    operator: "scipy.sparse.csr_array",
    features: "scipy.sparse.csr_array | FloatArray",
    *,
    layers: int,
    pooling: Pooling,
) -> npt.NDArray[np.float64]:
    """Propagate features through L layers and pool the L + 1 results of each node (paper, "Node Embedding Type").

    Parameters
    ----------
    operator : scipy.sparse.csr_array, (n_nodes, n_nodes)
    features : (n_nodes, n_features)
        x^(0), sparse or dense.
    layers : int
        L >= 0.
    pooling : {"concat", "average", "final"}

    Returns
    -------
    float64, (n_nodes, n_features), or (n_nodes, (L + 1) * n_features) for "concat"
    """
    current: npt.NDArray[np.float64]
    if isinstance(features, scipy.sparse.csr_array):
        current = features.toarray()
    else:
        # Without layers nothing else would make the result an array of its own.
        current = np.array(features, dtype=np.float64, copy=None if layers else True)
    if pooling == "concat":
        width = current.shape[1]
        result = np.empty((current.shape[0], (layers + 1) * width))
        result[:, :width] = current
        for layer in range(1, layers + 1):
            current = operator @ current
            result[:, layer * width : (layer + 1) * width] = current
        return result
    total = current.copy() if pooling == "average" else None
    for _ in range(layers):
        current = operator @ current
        if total is not None:
            total += current
    return current if total is None else total / (layers + 1)


def accumulated(
    operator: "scipy.sparse.csr_array",
    last: npt.NDArray[np.float64],
    others: Iterable[npt.NDArray[np.float64] | None],
) -> npt.NDArray[np.float64]:
    """Propagate and add up what comes in at each layer: the sum of S^l T_l, by Horner's rule.

    Parameters
    ----------
    operator : scipy.sparse.csr_array, (n_nodes, n_nodes)
        S.
    last : float64, (n_nodes, width)
        T_L.
    others : iterable of float64 (n_nodes, width), or None
        T_(L-1), ..., T_0; None stands for zeros.

    Returns
    -------
    float64, (n_nodes, width)

    Examples
    --------
    >>> swap = scipy.sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> accumulated(swap, np.array([[1.0], [2.0]]), [np.array([[10.0], [10.0]])]).ravel()
    array([12., 11.])
    """
    total = last
    for term in others:
        total = operator @ total
        if term is not None:
            total += term
    return total


def _fill(values: npt.NDArray[np.float64], where: npt.NDArray[np.bool_], new: FloatArray) -> npt.NDArray[np.float64]:
    result = values.copy()
    result[where] = new
    return result


def _scalar_weights(
    n_nodes: int, source: IntArray, target: IntArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    inverse_root = 1.0 / np.sqrt(1.0 + np.bincount(target, minlength=n_nodes))
    return weights * inverse_root[source] * inverse_root[target], inverse_root**2


def _channel_weights(
    n_nodes: int, source: IntArray, target: IntArray, channels: Iterable[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Add up the weights of channels, each (n_edges,): one after another, so that memory holds one, however many there are."""
    weights, self_weights = np.zeros(len(source)), np.zeros(n_nodes)
    for channel in channels:
        degree = 1.0 + np.bincount(target, channel, minlength=n_nodes)
        inverse_root = 1.0 / np.sqrt(degree)
        weights += channel * inverse_root[source] * inverse_root[target]
        self_weights += 1.0 / degree
    return weights, self_weights


LOOKED_UP = 25
"""Channels of a categorical edge feature that are all written down for every node; of more, only those that it has.

Up to so many that is faster where a node has two edges, and up to some hundred where it has fifty, but it takes 24 bytes a
channel and node. The two ways differ in how they round sums.
"""

COUNTED = 4
"""Channels of all nodes, for each edge, up to which those that occur are found by counting; of more, by sorting.

Up to so many, counting takes a quarter of the time, and 76 bytes an edge where sorting takes 70. Both give the same to the
last digit, so that a graph weighs the same in whatever batch it is.
"""


def _weights_of_all_channels(
    at_source: IntArray, at_target: IntArray, size: int, spokes: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Evaluate the weights of one column of labels by a table of all channels of all nodes.

    Parameters
    ----------
    at_source, at_target : int, (n_edges,)
        Entries of that table, ``node * size + label``, at the two ends of every edge.
    size : int
        Number of channels.
    spokes : float, (n_nodes,)
        What edges of virtual nodes add to a node's degree, in every channel.

    Returns
    -------
    of_edges : float64, (n_edges,)
    of_nodes : float64, (n_nodes,)
        The weight of every node itself, added up over the channels.
    of_spokes : float64, (n_nodes,)
        The inverse roots of its degrees, added up over the channels.
    """
    degree = np.bincount(at_target, minlength=len(spokes) * size) + 1.0
    degree.reshape(len(spokes), size)[:] += spokes[:, None]
    inverse_root = 1.0 / np.sqrt(degree)
    channels = inverse_root.reshape(len(spokes), size)
    of_edges = inverse_root.take(at_source) * inverse_root.take(at_target)
    return of_edges, np.einsum("ij,ij->i", channels, channels), channels.sum(axis=1)


def _weights_of_channels_that_occur(
    at_source: IntArray, at_target: IntArray, size: int, spokes: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Evaluate the same as `_weights_of_all_channels`, with sums over those channels alone in which edges end."""
    is_counted = len(spokes) * size <= COUNTED * len(at_target)
    if is_counted:
        found, count = _occurring(at_target, len(spokes) * size)
    else:
        found, position, count = np.unique(at_target, return_inverse=True, return_counts=True)
    # In any other channel, a node has only itself and its spokes.
    node, alone = found // size, 1.0 / np.sqrt(1.0 + spokes)
    inverse_root = 1.0 / np.sqrt(count + 1.0 + spokes[node])
    if is_counted:
        channels = np.repeat(alone, size)
        channels[found] = inverse_root
        of_edges = channels.take(at_source) * channels.take(at_target)
    else:
        place = np.minimum(np.searchsorted(found, at_source), len(found) - 1)
        of_source = np.where(found[place] == at_source, inverse_root[place], alone[at_source // size])
        of_edges = of_source * inverse_root[position]
    without = size - np.bincount(node, minlength=len(spokes))
    of_nodes = np.bincount(node, inverse_root**2, minlength=len(spokes)) + without * alone**2
    of_spokes = np.bincount(node, inverse_root, minlength=len(spokes)) + without * alone
    return of_edges, of_nodes, of_spokes


def _occurring(places: IntArray, n_places: int) -> tuple[IntArray, IntArray]:
    """List the places that occur, in ascending order, and how often each does."""
    counts = np.bincount(places, minlength=n_places)
    found = np.flatnonzero(counts)
    return found, counts[found]


def _label_weights(
    batch: GraphBatch, source: IntArray, target: IntArray, virtual: npt.NDArray[np.bool_], spoke_weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Evaluate the weights of one-hot edge features without writing the zeros down.

    A real edge counts in one channel a column, and there its two ends are looked up. An edge of a virtual node counts in
    all of them, and since the virtual node's degree is the same in all, it takes the sum of the other end's channels.
    """
    n_nodes = batch.n_nodes
    real = np.flatnonzero(~virtual)
    real_source, real_target = source[real], target[real]
    spokes = np.bincount(target[virtual], spoke_weight, minlength=n_nodes).astype(np.float64, copy=False)
    real_weights = np.zeros(len(real))
    self_weights = np.zeros(n_nodes)
    channel_sum = np.zeros(n_nodes)
    for column, size in enumerate(batch.schema.edge_category_counts):
        category = batch.edge_categories[:, column].take(real).astype(np.int64)
        weigh = _weights_of_all_channels if size <= LOOKED_UP else _weights_of_channels_that_occur
        of_edges, of_nodes, of_spokes = weigh(
            real_source * size + category, real_target * size + category, size, spokes
        )
        real_weights += of_edges
        self_weights += of_nodes
        channel_sum += of_spokes
    weights = np.empty(len(source))
    weights[real] = real_weights
    if len(spoke_weight):
        virtual_end = is_virtual(batch)[source[virtual]]
        hubs = np.where(virtual_end, source[virtual], target[virtual])
        others = np.where(virtual_end, target[virtual], source[virtual])
        weights[virtual] = spoke_weight / np.sqrt(1.0 + spokes[hubs]) * channel_sum[others]
    return weights, self_weights
