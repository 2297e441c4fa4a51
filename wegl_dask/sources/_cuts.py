"""Where a collection is cut into shards."""

import numpy as np

from wegl_dask.graphs import IntArray, offsets_from_counts


def cut_by_nodes(node_counts: IntArray, nodes_per_shard: int) -> IntArray:
    """Cut consecutive graphs into pieces of about `nodes_per_shard` nodes.

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
