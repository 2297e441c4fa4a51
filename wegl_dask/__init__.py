"""Whole-graph embeddings by linear optimal transport (WEGL), as a distributed batch job on Dask."""

from wegl_dask.errors import WeglError
from wegl_dask.graphs import GraphBatch, GraphSchema
from wegl_dask.reading import Embeddings, read_embeddings
from wegl_dask.version import __version__

__all__ = ["Embeddings", "GraphBatch", "GraphSchema", "WeglError", "__version__", "read_embeddings"]
