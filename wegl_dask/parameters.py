"""The parameters of the estimator, and the keys of the job file that they stand for."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import SettingsError, WeglError
from wegl_dask.graph_inputs import GraphForm
from wegl_dask.graphs import GraphSchema
from wegl_dask.labelled_graphs import AttributeNames, Vocabularies
from wegl_dask.reference import TooFewPointsError
from wegl_dask.saved_model import Origin

JOB_KEYS = {
    "n_layers": "diffusion.layers",
    "pooling": "diffusion.pooling",
    "n_components": "projection.components",
    "n_points": "reference.points",
    "reference": "reference.kind",
    "solver": "transport.solver",
    "virtual_node": "nodes.virtual_node",
    "random_state": "seed",
    "node_features": "nodes.features",
    "edge_features": "edges.features",
    "direction": "edges.direction",
    "standardize": "projection.standardize",
    "projection_method": "projection.method",
    "degree_clip": "nodes.degree_clip",
    "atom_embedding_width": "nodes.atom_embedding_width",
    "regularization": "transport.regularization",
    "auto_size": "transport.auto_size",
    "max_reference_nodes": "reference.max_nodes",
    "reference_epochs": "reference.epochs",
    "reference_graphs": "reference.graphs",
}
"""The keys of the job file that the parameters stand for."""

GIVEN = "given"
"""``reference.kind`` in the job of a model whose reference was given as an array."""


def job_tables(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Render parameters as the tables of a job that shape the embedding, as JSON values; those that are None are left out."""
    tables: dict[str, Any] = {"projection": {"fit_on": "all"}}
    for parameter, key in JOB_KEYS.items():
        value = parameters[parameter]
        table, _, leaf = key.rpartition(".")
        if value is not None:
            (tables.setdefault(table, {}) if table else tables)[leaf] = (
                value.item() if isinstance(value, np.generic) else value
            )
    return tables


def parameters_of(origin: Origin, schema: GraphSchema, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Find the parameters that a model was fitted with; WeglError where one of the tables of its job is missing.

    What the data chose is filled in, also the vocabularies: another fit, to graphs that lack some categories, is to give
    vectors of the same kind, in which every category of edges that is declared counts.
    """
    result = {}
    for parameter, key in JOB_KEYS.items():
        table, _, leaf = key.rpartition(".")
        values = origin.job.get(table) if table else origin.job
        if not isinstance(values, Mapping):
            raise WeglError(f"the model is not complete: model.json has no job.{table}; copy it anew, or fit it again")
        result[parameter] = values.get(leaf)
    if not result["node_features"]:
        raise WeglError(
            "the model is not complete: model.json has no job.nodes.features; copy it anew, or fit it again"
        )
    # A model that was fitted when there was one method alone.
    result["projection_method"] = result["projection_method"] or "exact"
    if result["reference"] == GIVEN:
        result["reference"] = arrays["reference"]
    names, vocabularies = names_and_values(origin)
    if vocabularies is None:
        result["schema"] = schema
    else:
        result["node_labels"] = dict(zip(names.node_labels, vocabularies.node, strict=True))
        result["edge_labels"] = dict(zip(names.edge_labels, vocabularies.edge, strict=True))
        result["node_attributes"] = names.node_attributes
        result["edge_attributes"] = names.edge_attributes
    return result


def numbering_of(form: GraphForm) -> dict[str, Any]:
    """Say how networkx graphs were read, as JSON values; `names_and_values` reads them back."""
    values = {"node": [], "edge": []} if form.vocabularies is None else form.vocabularies.to_json()
    return {"vocabularies": values, "attribute_names": {key: list(names) for key, names in asdict(form.names).items()}}


def names_and_values(origin: Origin) -> tuple[AttributeNames, Vocabularies | None]:
    """Find which attributes of networkx graphs a model reads, and the values of their categories."""
    if "attribute_names" not in origin.numbering:
        return AttributeNames(), None
    names = {key: tuple(values) for key, values in origin.numbering["attribute_names"].items()}
    return AttributeNames(**names), Vocabularies.from_json(origin.numbering["vocabularies"])


@contextmanager
def errors_in_parameters() -> Iterator[None]:
    """Word the errors of a fit in the names of the parameters instead of the keys of the job file."""
    try:
        yield
    except (TooFewPointsError, SettingsError) as error:
        # In a job that is to have no components the key is left out; the parameter has a default.
        message = str(error).replace("leave out projection.components", "set n_components = None")
        for parameter, key in JOB_KEYS.items():
            if "." in key:
                message = re.sub(rf"(?<![\w.]){re.escape(key)}\b", parameter, message)
        raise type(error)(message) from error
