"""Where a collection is cut into shards."""

import numpy as np

from wegl_dask.graphs import IntArray, offsets_from_counts

EDGES_PER_SHARD = 2_000_000
"""Listed edges, each counted both ways, that a shard has at most, where sparse graphs do not fill it with more: their
ingest takes 100 bytes each."""

SPARSE = 4
"""Listed edges a node up to which the nodes alone fill a shard; molecules have two."""


def shard_loads(node_counts: IntArray, edge_counts: IntArray, nodes_per_shard: int) -> IntArray:
    """Weigh graphs for `cut_by_nodes`: by their nodes, and by their edges where these fill a shard before.

    Parameters
    ----------
    node_counts, edge_counts : int, (n_graphs,)
        Edges counted both ways.
    nodes_per_shard : int

    Examples
    --------
    >>> shard_loads(np.array([10, 100]), np.array([20, 9900]), 100_000).tolist()
    [10, 495]
    """
    edges_per_node = max(EDGES_PER_SHARD // nodes_per_shard, SPARSE)
    return np.maximum(node_counts, edge_counts // edges_per_node)


def cut_by_nodes(node_counts: IntArray, nodes_per_shard: int) -> IntArray:
    """Cut consecutive graphs into pieces of about `nodes_per_shard` nodes, or what `shard_loads` counts as such.

    Parameters
    ----------
    node_counts : int, (n_graphs,)
    nodes_per_shard : int

    Returns
    -------
    boundaries : int64, (n_cuts + 1,)
        Graphs ``boundaries[i]:boundaries[i + 1]`` are piece i; none is empty.

    Examples
    --------
    >>> cut_by_nodes(np.array([4, 4, 4, 30, 1, 0]), 10).tolist()
    [0, 3, 4, 6]
    """
    offsets = offsets_from_counts(node_counts)
    # Graphs without nodes at the end stay with the last node.
    first_nodes = np.minimum(offsets[:-1], max(offsets[-1] - 1, 0))
    starts = np.flatnonzero(np.diff(first_nodes // nodes_per_shard, prepend=-1))
    return np.append(starts, len(node_counts))
