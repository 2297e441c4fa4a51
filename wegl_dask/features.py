"""Initial node features: labels, degrees, attributes and the random atom embedding, as one sparse matrix."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.errors import SettingsError
from wegl_dask.graphs import GraphBatch, GraphSchema, IntArray, UsedAttributes
from wegl_dask.molecules import ATOM_CATEGORY_COUNTS

FloatMatrix = npt.NDArray[np.float64]

BlockKind = Literal["label", "degree", "attribute", "atom"]


@dataclass(frozen=True)
class FeatureBlock:
    """Adjacent raw columns with one origin.

    Attributes
    ----------
    kind : {"label", "degree", "attribute", "atom"}
        A categorical node feature, one-hot; the degree, one-hot; one real feature; a categorical feature, one-hot,
        that the atom embedding encodes.
    index : int
        Which categorical or real feature of the node it is; 0 for the degree.
    width : int
        Number of raw columns.
    """

    kind: BlockKind
    index: int
    width: int


@dataclass(frozen=True)
class NodeFeatures:
    """Which raw columns a node has, and the matrix that encodes them.

    Attributes
    ----------
    blocks : tuple of FeatureBlock
        In the order of the columns.
    encoder : float64 (n_columns, n_features) or None
        Linear map from the raw columns to the features; None is the identity.
    """

    blocks: tuple[FeatureBlock, ...]
    encoder: FloatMatrix | None = None

    @property
    def n_columns(self) -> int:
        """Number of raw columns."""
        return sum(block.width for block in self.blocks)

    @property
    def n_features(self) -> int:
        """Number F of features after encoding."""
        return self.n_columns if self.encoder is None else self.encoder.shape[1]

    def raw_matrix(self, batch: GraphBatch) -> "scipy.sparse.csr_array":
        """Evaluate the raw columns, before encoding.

        Parameters
        ----------
        batch : GraphBatch
            With canonical edges; virtual nodes get no features, and their edges no part in the degrees.

        Returns
        -------
        scipy.sparse.csr_array
            float64, (n_nodes, n_columns).
        """
        n_nodes, n_blocks = batch.n_nodes, len(self.blocks)
        columns = np.zeros((n_nodes, n_blocks), dtype=np.int64)
        values = np.ones((n_nodes, n_blocks))
        start = 0
        for position, block in enumerate(self.blocks):
            match block.kind:
                case "label" | "atom":
                    # Not in one step: the categories may be of a type that is too small for the sum.
                    columns[:, position] = batch.node_categories[:, block.index]
                    columns[:, position] += start
                case "degree":
                    columns[:, position] = start + np.minimum(degrees(batch), block.width - 1)
                case "attribute":
                    columns[:, position] = start
                    values[:, position] = batch.node_attributes[:, block.index]
            start += block.width
        row_lengths = np.full(n_nodes, n_blocks)
        if batch.has_virtual_nodes:
            real = np.ones(n_nodes, dtype=bool)
            real[batch.node_offsets[1:] - 1] = False
            row_lengths[~real] = 0
            columns, values = columns[real], values[real]
        row_starts = np.concatenate([[0], np.cumsum(row_lengths)])
        return scipy.sparse.csr_array((values.ravel(), columns.ravel(), row_starts), shape=(n_nodes, self.n_columns))

    def seen_columns(self, seen_categories: Sequence[Iterable[int]], seen_degrees: Iterable[int]) -> IntArray:
        """Find the raw columns that are not zero throughout a collection.

        Parameters
        ----------
        seen_categories : sequence of iterable of int
            For every categorical node feature, the categories that occur.
        seen_degrees : iterable of int
            The degrees that occur.

        Returns
        -------
        int64, (n_seen,)
            Sorted column indices; attribute columns always count as seen.
        """
        seen: list[int] = []
        start = 0
        for block in self.blocks:
            match block.kind:
                case "label" | "atom":
                    seen += [start + category for category in seen_categories[block.index]]
                case "degree":
                    seen += [start + min(degree, block.width - 1) for degree in seen_degrees]
                case "attribute":
                    seen.append(start)
            start += block.width
        return np.unique(np.array(seen, dtype=np.int64))


def build_features(
    schema: GraphSchema, names: Sequence[str], *, max_degree: int, degree_clip: int, embedding_width: int, seed: int
) -> NodeFeatures:
    """Lay out the raw columns for the named features.

    Parameters
    ----------
    schema : GraphSchema
    names : sequence of {"labels", "degrees", "attributes", "atom_embedding"}
        Features, concatenated in this order.
    max_degree : int
        Largest degree of the collection: there are ``min(max_degree, degree_clip) + 1`` degree columns.
    degree_clip : int
        Degrees above this count as this.
    embedding_width : int
        Width F of the atom embedding.
    seed : int
        Seed of the atom embedding.

    Raises
    ------
    SettingsError
        If a feature is asked for that the graphs do not carry.
    """
    layout: list[FeatureBlock] = []
    widths: list[int] = []
    for name in names:
        match name:
            case "labels":
                new = [FeatureBlock("label", i, n) for i, n in enumerate(schema.node_category_counts)]
            case "degrees":
                new = [FeatureBlock("degree", 0, min(max_degree, degree_clip) + 1)]
            case "attributes":
                new = [FeatureBlock("attribute", i, 1) for i in range(schema.node_attribute_width)]
            case "atom_embedding":
                if schema.node_category_counts != ATOM_CATEGORY_COUNTS:
                    raise SettingsError(
                        f"nodes.features asks for the atom embedding, which is made for OGB's atom features with "
                        f"vocabularies {list(ATOM_CATEGORY_COUNTS)}; these graphs have {list(schema.node_category_counts)}"
                    )
                new = [FeatureBlock("atom", i, n) for i, n in enumerate(schema.node_category_counts)]
            case _:
                raise SettingsError(
                    f"{name!r} is no node feature; allowed are labels, degrees, attributes, atom_embedding"
                )
        if not new:
            raise SettingsError(f"nodes.features asks for {name}, and these graphs have none")
        widths.append(sum(block.width for block in new))
        layout += new
    if "atom_embedding" not in names:
        return NodeFeatures(tuple(layout))
    embedding = atom_embedding(embedding_width, seed)
    if len(names) == 1:
        # Without SciPy, which a client of such a job then need not import.
        return NodeFeatures(tuple(layout), embedding)
    encoders = [
        embedding if name == "atom_embedding" else scipy.sparse.eye_array(width)
        for name, width in zip(names, widths, strict=True)
    ]
    return NodeFeatures(tuple(layout), scipy.sparse.block_diag(encoders).toarray())


def default_features(schema: GraphSchema) -> tuple[str, ...]:
    """Choose features for graphs whose job names none.

    Atom features are embedded; else labels are taken, else attributes; graphs without any features get degrees.
    """
    if schema.node_category_counts == ATOM_CATEGORY_COUNTS:
        return ("atom_embedding",)
    if schema.node_category_counts:
        return ("labels",)
    if schema.node_attribute_width:
        return ("attributes",)
    return ("degrees",)


def default_edge_features(schema: GraphSchema) -> Literal["labels", "none"]:
    """Choose edge features for graphs whose job names none: labels, if there are some."""
    # Of graphs without any edge a label has no value: without a channel nodes would have no weight of their own.
    return "labels" if any(schema.edge_category_counts) else "none"


def used_attributes(schema: GraphSchema, names: Sequence[str] | None, edge_features: str | None) -> UsedAttributes:
    """Say which attributes graphs are embedded by.

    Parameters
    ----------
    schema : GraphSchema
    names : sequence of str or None
        The node features; None is those of `default_features`.
    edge_features : str or None
        "none", "labels", "attributes" or "weight"; None stands for one of the first two.
    """
    return UsedAttributes(
        node="attributes" in (names or default_features(schema)), edge=edge_features in {"attributes", "weight"}
    )


def degrees(batch: GraphBatch) -> IntArray:
    """Count the neighbours of every node on the simple graph, without virtual nodes: int64, (n_nodes,)."""
    source, target = batch.global_edges()
    if batch.has_virtual_nodes:
        real = ~(is_virtual(batch)[source] | is_virtual(batch)[target])
        target = target[real]
    return np.bincount(target, minlength=batch.n_nodes)


def is_virtual(batch: GraphBatch) -> npt.NDArray[np.bool_]:
    """Mark the virtual nodes: bool, (n_nodes,)."""
    mask = np.zeros(batch.n_nodes, dtype=bool)
    if batch.has_virtual_nodes:
        mask[batch.node_offsets[1:] - 1] = True
    return mask


def atom_embedding(width: int, seed: int) -> FloatMatrix:
    """Draw the untrained atom embedding: the tables of OGB's nine atom features on top of one another.

    Every table is Xavier-uniform, entries between ±sqrt(6 / (rows + width)), and drawn in the order of the features
    from ``numpy.random.default_rng(seed)``, whatever occurs in the data.

    Returns
    -------
    float64, (174, width)

    Examples
    --------
    >>> atom_embedding(300, seed=0).shape
    (174, 300)
    """
    rng = np.random.default_rng(seed)
    bounds = [np.sqrt(6.0 / (rows + width)) for rows in ATOM_CATEGORY_COUNTS]
    return np.concatenate(
        [
            rng.uniform(-bound, bound, size=(rows, width))
            for rows, bound in zip(ATOM_CATEGORY_COUNTS, bounds, strict=True)
        ]
    )
