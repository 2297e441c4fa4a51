"""The embedding as a scikit-learn transformer, and its model on storage."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from numbers import Integral, Real
from pathlib import PurePosixPath
from typing import Any, Literal, Self, TypeVar

import joblib
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from wegl_dask.errors import WeglError
from wegl_dask.features import default_edge_features, default_features
from wegl_dask.fitting import ProjectionMethod
from wegl_dask.graph_collections import GraphCollection, collect_graphs
from wegl_dask.graph_inputs import GraphForm
from wegl_dask.graphs import GraphSchema, offsets_from_counts
from wegl_dask.kernels import Device, kernels
from wegl_dask.labelled_graphs import AttributeNames, Label
from wegl_dask.local_embedding import Costs, Vectors, embed_as_read, embed_usable, joined
from wegl_dask.local_fit import ReferenceSettings, fit_points, fit_reference, given_reference
from wegl_dask.parameters import GIVEN, errors_in_parameters, job_tables, names_and_values, numbering_of, parameters_of
from wegl_dask.points import NodeSettings
from wegl_dask.saved_model import Model, Origin
from wegl_dask.spec import MOST_LAYERS
from wegl_dask.version import NUMERICS_VERSION

Names = Sequence[str] | Mapping[str, Sequence[Label]]
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Number(Interval):  # type: ignore[misc]
    """An interval without the booleans, which Python counts among the numbers, and a model on storage does not."""

    def is_satisfied_by(self, val: Any) -> bool:
        return not isinstance(val, bool) and bool(super().is_satisfied_by(val))


class WEGL(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Embed whole graphs as vectors by linear optimal transport.

    Node features are diffused through the layers of a graph, standardised and projected; then the points of each graph
    are transported to a reference, and the displacements of the reference points are the graph's vector. Distances
    between vectors approximate 2-Wasserstein distances between graphs, so that any classifier of vectors, linear or
    with a kernel, classifies graphs.

    The batch job, ``wegl-dask run``, computes the same numbers on a cluster, where ``projection.components`` is
    `n_components`; by default it has no principal components. Its models can be loaded here.

    Parameters
    ----------
    n_layers : int, default 4
        Number of diffusion layers; 0 takes the features as they are.
    pooling : {"concat", "average", "final"}, default "final"
        What becomes of the ``n_layers + 1`` features of a node.
    n_components : int or None, default 20
        Number of principal components that the node embeddings are projected to, at most: there are fewer where they
        vary in fewer directions. None leaves the PCA out.
    n_points : int or None, default None
        Number of reference points; None is the mean number of points a graph, rounded down.
    reference : {"kmeans", "normal", "barycenter", "sample", "origin"} or array-like, default "kmeans"
        The reference: k-means of the node embeddings, draws from a normal distribution, the free-support Wasserstein
        barycenter of some graphs, some of the nodes, or points given in the coordinates after the projection, (n_points,
        n_components). The origin alone makes the vector the average of a graph's points: global average pooling.
    solver : {"exact", "sinkhorn", "auto"}, default "exact"
        Linear program; entropic in the log domain; or entropic where a graph's number of points times `n_points` is
        above `auto_size`.
    virtual_node : bool, default False
        Add to every graph a node that is joined to all others.
    random_state : int, RandomState instance or None, default 0
        For the atom embedding and the reference.
    node_features : sequence of {"labels", "degrees", "attributes", "atom_embedding"} or one of them, default None
        Initial features of a node, concatenated in this order. None is the atom embedding for graphs with the features
        of OGB's molecules, else labels where there are some, else attributes, else degrees.
    edge_features : {"none", "labels", "attributes", "weight"} or None, default None
        What an edge weighs: 1; its labels, one-hot; its attributes, a channel each; its only attribute as a scalar. None
        is labels where there are some, else 1.
    direction : {"undirected", "directed"}, default "undirected"
        An edge joins both ways, or makes its source a neighbour of its target alone.
    standardize : bool, default True
        Bring the node embeddings to mean 0 and variance 1 before the PCA.
    projection_method : {"exact", "randomized"}, default "exact"
        How the principal components are found: from the products of all pairs of columns, of which there may be 4,096;
        or approximately, from products with random directions, for any number of columns.
    degree_clip : int, default 500
        Degrees above this count as this.
    atom_embedding_width : int, default 300
        Width of the random atom embedding.
    regularization : float, default 0.01
        Of the entropic solver, as a fraction of a graph's largest cost.
    auto_size : int, default 4_000_000
        See `solver`.
    max_reference_nodes : int, optional
        Number of node embeddings that the reference is computed from, at most; if not given, 10,000 for each of its points,
        and 1,000,000 in all.
    reference_epochs : int, default 5
        Passes of k-means over them.
    reference_graphs : int, default 200
        Number of graphs that a barycenter is taken of.
    schema : GraphSchema or None, default None
        The features that graphs have, and the sizes of their vocabularies. By default a vocabulary reaches up to the
        largest category in the graphs of the fit, or is what a GraphBatch declares. Graphs with other categories are
        errors in `transform`, so give it where a part of the data may lack some, as in cross-validation. Each edge
        category that is declared adds to the weight of self-connections, whether it occurs or not. For networkx graphs
        `node_labels` and `edge_labels` say which values there may be.
    node_labels, edge_labels : sequence of str, or mapping of str to sequence, default ()
        For networkx graphs: the attributes that are read as categories. A mapping also gives the values of each, where
        the graphs of the fit may lack some.
    node_attributes, edge_attributes : sequence of str, default ()
        For networkx graphs: the attributes that are read as numbers.
    n_jobs : int or None, default None
        Number of batches of graphs under way at a time, by joblib. Its backend may be a Dask client:
        ``joblib.parallel_config("dask")``. None is 1 outside of such a context. The results do not depend on it.
    device : {"cpu", "cuda"}, default "cpu"
        What diffuses and finds entropic plans: the processor, or a GPU by torch, with the same result to float32
        tolerance. Exact plans are found on the processor.

    Attributes
    ----------
    reference_ : float64, (n_points_, n_components_)
        Reference points, distinct, in lexicographic order.
    n_points_ : int
        Number N of reference points.
    n_components_ : int
        Number d of coordinates of a point.
    mean_, scale_ : float64, (n_columns,)
        Of the node embeddings before the PCA.
    components_ : float64, (n_components_, n_columns), or None
        Principal axes, by decreasing variance; None without a PCA.
    explained_variance_, explained_variance_ratio_ : float64, (n_components_,)
        Variance of the points along each axis, and as a fraction of the whole.
    schema_ : GraphSchema
        Of the graphs that can be transformed.
    vocabularies_ : Vocabularies or None
        The values of the categories of networkx graphs; None where categories are numbers.
    node_features_ : tuple of str
    edge_features_ : str
    n_graphs_seen_, n_nodes_seen_ : int
        Graphs, and points (virtual nodes included), of the fit.
    model_ : wegl_dask.saved_model.Model
        All of it, as pure functions.

    Notes
    -----
    Graphs are read once, in batches of some 16,000 nodes; for the passes of a fit they are held as compact arrays, and
    beyond 256 MB in a temporary file. So a generator will do, and memory does not grow with the number of graphs but
    for the vectors that `transform` returns.

    With the points z_k of a graph, of weight b_k, and the reference Z_0 of N points (Kolouri, Naderializadeh, Rohde,
    Hoffmann, ICLR 2021)::

        pi  = argmin over couplings of  sum_jk pi_jk |z0_j - z_k|^2
        phi = (N pi Z - Z_0) / sqrt(N)

    and phi, row-major, is the vector. What `transform` returns is equal to the column ``embedding`` of the job's
    output for the same model.

    Examples
    --------
    >>> from wegl_dask import WEGL
    >>> path = [[0, 1], [1, 2]]  # edges 0-1 and 1-2: sources, then targets
    >>> triangle = [[0, 1, 2], [1, 2, 0]]
    >>> graphs = [(path, [0, 1, 0]), (path, [1, 1, 0]), (triangle, [0, 0, 1]), (triangle, [1, 1, 0])]
    >>> wegl = WEGL(n_layers=2, n_points=3).fit(graphs)
    >>> wegl.transform(graphs).shape
    (4, 6)
    >>> wegl.reference_.shape
    (3, 2)
    """

    _parameter_constraints = {  # noqa: RUF012  scikit-learn reads it from the class
        "n_layers": [_Number(Integral, 0, MOST_LAYERS, closed="both")],
        "pooling": [StrOptions({"concat", "average", "final"})],
        "n_components": [_Number(Integral, 1, None, closed="left"), None],
        "n_points": [_Number(Integral, 1, None, closed="left"), None],
        "reference": [StrOptions({"kmeans", "normal", "barycenter", "sample", "origin"}), "array-like"],
        "solver": [StrOptions({"exact", "sinkhorn", "auto"})],
        "virtual_node": ["boolean"],
        "random_state": ["random_state"],
        "node_features": [StrOptions({"labels", "degrees", "attributes", "atom_embedding"}), list, tuple, None],
        "edge_features": [StrOptions({"none", "labels", "attributes", "weight"}), None],
        "direction": [StrOptions({"undirected", "directed"})],
        "standardize": ["boolean"],
        "projection_method": [StrOptions({"exact", "randomized"})],
        "degree_clip": [_Number(Integral, 0, None, closed="left")],
        "atom_embedding_width": [_Number(Integral, 1, None, closed="left")],
        "regularization": [_Number(Real, 0, None, closed="neither")],
        "auto_size": [_Number(Integral, 1, None, closed="left")],
        "max_reference_nodes": [_Number(Integral, 1, None, closed="left"), None],
        "reference_epochs": [_Number(Integral, 1, None, closed="left")],
        "reference_graphs": [_Number(Integral, 2, None, closed="left")],
        "schema": [GraphSchema, None],
        "node_labels": [list, tuple, Mapping],
        "node_attributes": [list, tuple],
        "edge_labels": [list, tuple, Mapping],
        "edge_attributes": [list, tuple],
        "n_jobs": [Integral, None],
        "device": [StrOptions({"cpu", "cuda"})],
    }

    def __init__(
        self,
        n_layers: int = 4,
        *,
        pooling: Literal["concat", "average", "final"] = "final",
        n_components: int | None = 20,
        n_points: int | None = None,
        reference: str | npt.ArrayLike = "kmeans",
        solver: Literal["exact", "sinkhorn", "auto"] = "exact",
        virtual_node: bool = False,
        random_state: Any = 0,
        node_features: str | Sequence[str] | None = None,
        edge_features: Literal["none", "labels", "attributes", "weight"] | None = None,
        direction: Literal["undirected", "directed"] = "undirected",
        standardize: bool = True,
        projection_method: ProjectionMethod = "exact",
        degree_clip: int = 500,
        atom_embedding_width: int = 300,
        regularization: float = 0.01,
        auto_size: int = 4_000_000,
        max_reference_nodes: int | None = None,
        reference_epochs: int = 5,
        reference_graphs: int = 200,
        schema: GraphSchema | None = None,
        node_labels: Names = (),
        node_attributes: Sequence[str] = (),
        edge_labels: Names = (),
        edge_attributes: Sequence[str] = (),
        n_jobs: int | None = None,
        device: Device = "cpu",
    ) -> None:
        self.n_layers = n_layers
        self.pooling = pooling
        self.n_components = n_components
        self.n_points = n_points
        self.reference = reference
        self.solver = solver
        self.virtual_node = virtual_node
        self.random_state = random_state
        self.node_features = node_features
        self.edge_features = edge_features
        self.direction = direction
        self.standardize = standardize
        self.projection_method = projection_method
        self.degree_clip = degree_clip
        self.atom_embedding_width = atom_embedding_width
        self.regularization = regularization
        self.auto_size = auto_size
        self.max_reference_nodes = max_reference_nodes
        self.reference_epochs = reference_epochs
        self.reference_graphs = reference_graphs
        self.schema = schema
        self.node_labels = node_labels
        self.node_attributes = node_attributes
        self.edge_labels = edge_labels
        self.edge_attributes = edge_attributes
        self.n_jobs = n_jobs
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit projection and reference to graphs.

        Parameters
        ----------
        X : GraphBatch or iterable of graphs
            A GraphBatch, or an iterable of graphs of one kind: torch_geometric Data, networkx graphs, pairs
            ``(edge_index, x)`` or triples ``(edge_index, x, edge_attr)`` of arrays, graphs of ogb with their label or
            without, or GraphBatches. Data sets of torch_geometric and ogb are such iterables, and so are data loaders of
            torch_geometric: a Batch, alone or as an item, is the graphs that it was made of. An edge index is (2,
            n_edges), sources first; features are (n, width) or (n,). Whole numbers are categories, real numbers are
            attributes.
        y : ignored
            There for scikit-learn.

        Raises
        ------
        UnusableGraphError
            If a graph cannot be read or embedded; the message has its index and the reason.
        TooFewPointsError
            If the graphs have fewer distinct node embeddings than the reference is to have points.
        ValueError
            If the graphs lack a feature that is asked for.
        """
        del y
        self._fit(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Vectors:
        """Fit to graphs, and transform them; they are read once. See `fit` and `transform`."""
        del y
        graphs = self._fit(X)
        first = offsets_from_counts(graphs.census.graph_counts).tolist()
        embedded = self._run(partial(embed_usable, self.model_.on(self.device)), zip(first, graphs, strict=False))
        return joined(embedded, self._n_features_out)[0]

    def transform(self, X: Any, *, return_cost: bool = False) -> Vectors | tuple[Vectors, Costs]:
        """Embed graphs.

        Parameters
        ----------
        X : GraphBatch or iterable of graphs
            See `fit`; features must be those of the fit, categories must be in its vocabularies.
        return_cost : bool, default False
            Return the transport costs as well.

        Returns
        -------
        vectors : float32, (n_graphs, n_points_ * n_components_)
            Row-major: the displacement of the first reference point, then of the second, ...
        costs : float64, (n_graphs,)
            With `return_cost`: the cost of each plan, which is the squared 2-Wasserstein distance of the graph to the
            reference where it was solved exactly.

        Raises
        ------
        UnusableGraphError
            If a graph cannot be read or embedded, with its index and the reason.

        Warns
        -----
        ConvergenceWarning
            If the exact solver failed on a graph, and the entropic one did not.
        """
        check_is_fitted(self, "model_")
        kernels(self.device)  # so that a device that is missing is told of before graphs are read
        embedded = self._run(partial(embed_as_read, self.model_.on(self.device)), self._form.read(X))
        vectors, costs = joined(embedded, self._n_features_out)
        return (vectors, costs) if return_cost else vectors

    def save(self, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Write the model to a folder, as ``model.json`` and ``arrays.npz``; nothing in them is executed when read.

        Parameters
        ----------
        path : str or path-like
            The folder, which need not exist: a path or any fsspec URL.
        storage_options : mapping, optional
            Arguments for the file system.

        Raises
        ------
        WeglError
            If it cannot be written, or is the folder of a run, or of its model, which it would hide or replace. On a local
            disk, a model that was there stays.
        """
        check_is_fitted(self, "model_")
        from wegl_dask.claims import holds_run  # noqa: PLC0415
        from wegl_dask.folders import Folder  # noqa: PLC0415  Arrow and fsspec are slow to import
        from wegl_dask.model_files import MODEL_JSON, encode_model  # noqa: PLC0415

        folder = Folder(os.fspath(path), storage_options or {})
        around, _, name = folder.url.rpartition("/")
        # What is around a folder at the top, such as memory:///model, has no name, and is no run.
        is_inside = name == PurePosixPath(MODEL_JSON).parent.name and not around.endswith("/") and around
        run = Folder(around, folder.storage_options) if is_inside else folder
        if holds_run(run):
            raise WeglError(f"{run.location()} holds a run, whose model this is not: save to a folder of its own")
        contents = encode_model(*self.model_.to_files(self._origin))
        folder.write_together({PurePosixPath(name).name: content for name, content in contents.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Read a model that `save` or a batch job wrote.

        Parameters
        ----------
        path : str or path-like
            The folder that `save` wrote, the run folder of a job, or the folder model/ in it.
        storage_options : mapping, optional
            Arguments for the file system.

        Returns
        -------
        WEGL
            Fitted, with the parameters of the fit, and the choices of the data filled in: a further `fit` takes the
            vocabularies of the first, unless `schema` is set to None. `n_jobs` and `device` are the defaults.

        Raises
        ------
        WeglError
            If there is no model, or it is damaged, or of a later format.
        """
        from wegl_dask.folders import Folder  # noqa: PLC0415
        from wegl_dask.model_files import find_model  # noqa: PLC0415

        description, arrays = find_model(Folder(os.fspath(path), storage_options or {}))
        origin = Origin.from_description(description)
        model = Model.from_files(description, arrays)
        result = cls(**parameters_of(origin, model.schema, arrays))
        result._keep(model, origin, GraphForm(model.schema, *names_and_values(origin)))
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_points_ * self.n_components_

    def _fit(self, X: Any) -> GraphCollection:
        self._validate_params()
        kernels(self.device)
        names = AttributeNames(
            tuple(self.node_labels), tuple(self.node_attributes), tuple(self.edge_labels), tuple(self.edge_attributes)
        )
        named = (self.node_features,) if isinstance(self.node_features, str) else self.node_features
        graphs = collect_graphs(
            X,
            names=names,
            schema=self.schema,
            node_values=self.node_labels if isinstance(self.node_labels, Mapping) else {},
            edge_values=self.edge_labels if isinstance(self.edge_labels, Mapping) else {},
            directed=self.direction == "directed",
            node_features=named,
            edge_features=self.edge_features,
        )
        schema = graphs.form.schema
        settings = NodeSettings(
            schema=schema,
            features=tuple(named or default_features(schema)),
            max_degree=graphs.census.degrees[-1],
            degree_clip=self.degree_clip,
            embedding_width=self.atom_embedding_width,
            seed=_seed(self.random_state),
            edge_features=self.edge_features or default_edge_features(schema),
            virtual_node=bool(self.virtual_node),
            layers=self.n_layers,
            pooling=self.pooling,
            device=self.device,
        )
        with errors_in_parameters():
            model = self._fit_model(graphs, settings)
        self._keep(model, self._make_origin(graphs, settings, model), graphs.form)
        return graphs

    def _fit_model(self, graphs: GraphCollection, settings: NodeSettings) -> Model:
        embedding = fit_points(
            graphs,
            settings,
            standardize=self.standardize,
            components=self.n_components,
            method=self.projection_method,
            run=self._run,
        )
        if isinstance(self.reference, str):
            how = ReferenceSettings(
                kind=self.reference,  # type: ignore[arg-type]  # validated
                n_points=self.n_points,
                max_nodes=self.max_reference_nodes,
                epochs=self.reference_epochs,
                n_graphs=self.reference_graphs,
                seed=settings.seed,
            )
            reference = fit_reference(graphs, embedding, how, self._run)
        else:
            reference = given_reference(self.reference, embedding, self.n_points)
        return Model(
            schema=settings.schema,
            points=embedding,
            reference=reference,
            rounding_step=embedding.projection.rounding_step,
            directed=self.direction == "directed",
            solver=self.solver,
            regularization=self.regularization,
            auto_size=self.auto_size,
        )

    def _make_origin(self, graphs: GraphCollection, settings: NodeSettings, model: Model) -> Origin:
        """Say what the model was fitted with, the choices of the data filled in."""
        is_given = not isinstance(self.reference, str)
        chosen = {
            "n_components": None if self.n_components is None else model.dimension,
            "reference": GIVEN if is_given else self.reference,
            "random_state": settings.seed,
            "node_features": list(settings.features),
            "edge_features": settings.edge_features,
        }
        job = job_tables({**self.get_params(deep=False), **chosen})
        numbering = {} if graphs.form.vocabularies is None else numbering_of(graphs.form)
        made_of = [job, numbering, asdict(model.schema), graphs.census.digest, NUMERICS_VERSION]
        if is_given:
            made_of.append(model.reference.tolist())
        fingerprint = hashlib.blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16).hexdigest()
        n_points = int(graphs.census.node_counts.sum()) + settings.virtual_node * graphs.census.n_graphs
        return Origin(job, fingerprint, graphs.census.n_graphs, n_points, numbering)

    def _keep(self, model: Model, origin: Origin, form: GraphForm) -> None:
        """Set the fitted attributes."""
        projection = model.points.projection
        self._origin = origin
        self._form = form
        self.model_ = model
        self.reference_ = model.reference
        self.n_points_ = model.n_points
        self.n_components_ = model.dimension
        self.mean_ = projection.mean
        self.scale_ = projection.scale
        self.components_ = projection.components
        self.explained_variance_ = projection.variances
        self.explained_variance_ratio_ = projection.variances / (projection.total_variance or 1.0)
        self.schema_ = model.schema
        self.vocabularies_ = form.vocabularies
        self.node_features_ = tuple(origin.job["nodes"]["features"])
        self.edge_features_ = model.points.nodes.edge_features
        self.n_graphs_seen_ = origin.n_graphs
        self.n_nodes_seen_ = origin.n_nodes

    def _run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Apply a function to items, as many at a time as asked for; the results come in the order of the items."""
        if joblib.effective_n_jobs(self.n_jobs) == 1:
            return map(function, items)
        parallel = joblib.Parallel(n_jobs=self.n_jobs, return_as="generator")
        results: Iterator[Result] = parallel(joblib.delayed(function)(item) for item in items)
        return results


def _seed(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
