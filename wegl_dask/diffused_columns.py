"""Moments of diffused features, some columns of which are evaluated at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.accumulation import MomentAccumulator
from wegl_dask.diffusion import Pooling
from wegl_dask.graphs import BLOCK_ENTRIES, IntArray
from wegl_dask.kernels import Device, kernels
from wegl_dask.projection import Moments

FloatMatrix = npt.NDArray[np.float64]

NEARLY_ALL = 0.8
"""Part of the features that occur in some graphs from which on leaving out the others takes longer than it saves."""

GRAPH_ENTRIES = 16_000_000
"""Float64 entries of the node embeddings of one graph that are held together for their products: 128 MB."""

CALL_PRODUCTS = 4_000_000
"""Products in one large matrix product that take as long as handling one graph by itself, without its products."""


@dataclass(frozen=True)
class DiffusedColumns:
    """The pooled features of a few graphs, some columns of which can be evaluated at a time.

    Attributes
    ----------
    operator : scipy.sparse.csr_array, (n_nodes, n_nodes)
    features : (n_nodes, n_features)
    layers, pooling, device
        See `wegl_dask.points.NodeEmbedding`.
    """

    operator: "scipy.sparse.csr_array"
    features: "scipy.sparse.csr_array | FloatMatrix"
    layers: int
    pooling: Pooling
    device: Device

    @property
    def repeats(self) -> int:
        """How often the feature columns are repeated."""
        return self.layers + 1 if self.pooling == "concat" else 1

    def add_to(self, total: MomentAccumulator, offsets: IntArray, *, scatter: bool) -> None:
        """Add the moments of all nodes to `total`, in the way that takes least.

        Parameters
        ----------
        total : MomentAccumulator
        offsets : int64, (n_graphs + 1,)
            Graph i owns the nodes ``offsets[i]:offsets[i + 1]``.
        scatter : bool
            Take the products of all pairs of columns too.
        """
        if not scatter:
            total.add(self.moments())
        elif self._has_few_columns_a_graph(offsets):
            for start, stop in pairwise(offsets.tolist()):
                if stop > start:
                    self._add_products_of(total, slice(start, stop))
        else:
            self._add_products_of(total, slice(0, self.features.shape[0]))

    def evaluate(self, start: int = 0, stop: int | None = None) -> FloatMatrix:
        """Diffuse and pool the features ``start:stop``: (n_nodes, repeats * (stop - start))."""
        features = self.features[:, start:stop]
        return kernels(self.device).pooled(self.operator, features, layers=self.layers, pooling=self.pooling)

    def moments(self) -> Moments:
        """Take the moments of all columns, without their products."""
        n_nodes = self.features.shape[0]
        own, places = self._own(slice(0, n_nodes))
        # Where no feature occurs, all are 0.
        means, squares = [np.empty((self.repeats, 0))], [np.empty((self.repeats, 0))]
        for start, stop in own.steps(BLOCK_ENTRIES):
            part = Moments.of(own.evaluate(start, stop), scatter=False)
            means.append(part.mean.reshape(self.repeats, -1))
            squares.append(part.deviations.reshape(self.repeats, -1))
        # Every step has some columns of each layer: put every layer's columns side by side.
        mean, deviations = (np.concatenate(parts, axis=1).ravel() for parts in (means, squares))
        return Moments(n_nodes, self._among_all(mean, places), self._among_all(deviations, places))

    def products(self) -> tuple[FloatMatrix, Iterator[tuple[IntArray, IntArray, FloatMatrix]]]:
        """Take the mean of all columns, and the products of their deviations for two groups of columns at a time.

        So the columns of a large graph need not be in memory together; diffusing them anew for every pair of groups
        takes little time beside the products.

        Returns
        -------
        mean : float64, (width,)
        products : iterator
            See `wegl_dask.accumulation.MomentAccumulator.add_products`.
        """
        n_features = self.features.shape[1]
        steps = list(self.steps(GRAPH_ENTRIES // 2))
        columns = [
            (np.arange(self.repeats)[:, None] * n_features + np.arange(start, stop)).ravel() for start, stop in steps
        ]
        mean = np.empty(self.repeats * n_features)
        for step, own in zip(steps, columns, strict=True):
            values = self.evaluate(*step)
            mean[own] = values.mean(axis=0)
        if len(steps) == 1:
            values -= mean
            return mean, iter([(columns[0], columns[0], values.T @ values)])

        def centred(group: int) -> FloatMatrix:
            values = self.evaluate(*steps[group])
            values -= mean[columns[group]]
            return values

        def pairs() -> Iterator[tuple[IntArray, IntArray, FloatMatrix]]:
            for first in range(len(steps)):
                left = centred(first)
                yield columns[first], columns[first], left.T @ left
                for second in range(first + 1, len(steps)):
                    yield columns[first], columns[second], left.T @ centred(second)

        return mean, pairs()

    def steps(self, n_entries: int) -> Iterator[tuple[int, int]]:
        """Cut the features into steps whose diffused columns have at most `n_entries` entries, or one feature."""
        n_nodes, n_features = self.features.shape
        step = max(1, n_entries // max(1, n_nodes * self.repeats))
        for start in range(0, n_features, step):
            yield start, min(start + step, n_features)

    def _has_few_columns_a_graph(self, offsets: IntArray) -> bool:
        """Whether the products are cheaper graph by graph, each over the columns that it has, as degrees are."""
        if not scipy.sparse.issparse(self.features):
            return False
        n_nodes, n_features = self.features.shape
        width, n_graphs = n_features * self.repeats, len(offsets) - 1
        at_once = n_nodes * (self.repeats * len(_occurring(self.features))) ** 2
        of_calls = n_graphs * (CALL_PRODUCTS + 4 * width**2)
        if of_calls >= at_once:
            return False
        rows, columns = self.features.nonzero()
        graphs = np.searchsorted(offsets, rows, side="right") - 1
        own = np.bincount(np.unique(graphs * n_features + columns) // n_features, minlength=n_graphs)
        by_graph = (np.diff(offsets) * (self.repeats * own.astype(np.float64)) ** 2).sum()
        return bool(by_graph + of_calls < at_once)

    def _add_products_of(self, total: MomentAccumulator, nodes: slice) -> None:
        """Add the moments of some graphs, over the columns that occur in them."""
        own, places = self._own(nodes)
        n_nodes = nodes.stop - nodes.start
        if n_nodes * len(places) <= GRAPH_ENTRIES:
            total.consume(own.evaluate(), places)
        else:
            mean, products = own.products()
            in_all = ((places[left], places[right], values) for left, right, values in products)
            total.add_products(n_nodes, self._among_all(mean, places), in_all)

    def _own(self, nodes: slice) -> tuple["DiffusedColumns", IntArray]:
        """Take the features that occur in some graphs, or all where nearly all do.

        A column that is 0 at all their nodes stays so when diffused.

        Returns
        -------
        columns : DiffusedColumns
            Of those graphs and features.
        places : int
            Where these are among all columns, layer by layer.
        """
        n_nodes, n_features = self.features.shape
        own, taken = self, np.arange(n_features)
        if nodes != slice(0, n_nodes):
            own = replace(self, operator=self.operator[nodes, nodes], features=self.features[nodes])
        if scipy.sparse.issparse(own.features):
            occurring = _occurring(own.features)
            if len(occurring) < NEARLY_ALL * n_features:
                own, taken = replace(own, features=own.features[:, occurring]), occurring
        return own, (np.arange(self.repeats)[:, None] * n_features + taken).ravel()

    def _among_all(self, values: FloatMatrix, places: IntArray) -> FloatMatrix:
        result = np.zeros(self.repeats * self.features.shape[1])
        result[places] = values
        return result


def _occurring(features: "scipy.sparse.csr_array") -> IntArray:
    """Find the columns that have entries, in ascending order."""
    return np.flatnonzero(np.bincount(features.indices, minlength=features.shape[1]))
