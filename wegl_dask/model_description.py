"""The content of model.json, checked before anything is computed with it: it may come from anywhere."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wegl_dask.errors import WeglError
from wegl_dask.features import FeatureBlock
from wegl_dask.graphs import GraphSchema
from wegl_dask.labelled_graphs import AttributeNames
from wegl_dask.spec import DiffusionTable, EdgesTable, NodesTable, TransportTable
from wegl_dask.version import __version__

FORMAT_VERSION = 1
"""Changes when ``model.json`` does, in such a way that older code would read it wrongly."""

Positive = Annotated[float, Field(gt=1e-100, lt=1e100)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[Integer, Field(ge=0)]


class _Checked(BaseModel):
    """Values of the right types; keys that this version does not know are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


class ShapingJob(_Checked):
    """The tables of the job file that a model follows, with all choices made."""

    seed: Integer
    nodes: NodesTable
    edges: EdgesTable
    diffusion: DiffusionTable
    transport: TransportTable

    @model_validator(mode="after")
    def _edges_are_chosen(self) -> Self:
        if self.edges.features is None:
            raise ValueError("edges.features has to be set")
        return self


class FittedOn(_Checked):
    """What a model was fitted to."""

    graphs: Count
    nodes: Count


class NumberedValues(_Checked):
    """The values that categories stand for, a list for every categorical feature."""

    node: list[list[str | float | int]]
    edge: list[list[str | float | int]]


class Numbering(_Checked):
    """How a source numbers its categories; what is not set does not apply to it."""

    vocabularies: NumberedValues | None = None
    attribute_names: AttributeNames | None = None
    node_label_minima: list[Integer] | None = None
    edge_label_minima: list[Integer] | None = None


class ModelDescription(_Checked):
    """What ``model.json`` holds.

    Attributes
    ----------
    graphs : GraphSchema
        Under the key ``schema``.
    """

    format_version: Integer
    n_points: Count = Field(alias="N")
    dimension: Count = Field(alias="d")
    rounding_step: Positive
    graphs: GraphSchema = Field(alias="schema")
    columns: tuple[FeatureBlock, ...]
    numbering: Numbering
    total_variance: Annotated[float, Field(ge=0)]
    job: ShapingJob
    fitted_on: FittedOn
    fingerprint: str
    numerics_version: Integer
    versions: dict[str, str]

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Check the JSON values of a ``model.json``.

        Raises
        ------
        WeglError
            If a key is missing or its value is of no use, or the model is of a later format.
        """
        version = values.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            made_by = values.get("versions")
            by = f", written by wegl-dask {made_by.get('wegl_dask')}" if isinstance(made_by, Mapping) else ""
            raise WeglError(
                f"the model is of format {version}{by}; this is {__version__}, which reads formats up to {FORMAT_VERSION}: "
                "install a later version"
            )
        try:
            # As JSON, lists stand for tuples too.
            return cls.model_validate_json(json.dumps(values))
        except ValidationError as error:
            raise WeglError(_explained(error)) from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for block in self.columns:
            if not self._has(block):
                raise ValueError(f"graphs of {self.graphs} have no {block}")
        channels = {
            "none": True,
            "labels": any(self.graphs.edge_category_counts),
            "attributes": self.graphs.edge_attribute_width > 0,
            "weight": self.graphs.edge_attribute_width == 1,
        }
        if not channels[str(self.job.edges.features)]:
            raise ValueError(f"edges of {self.graphs} have no {self.job.edges.features}")
        self._check_numbering()
        return self

    def _has(self, block: FeatureBlock) -> bool:
        """Say whether the graphs have the features of a block."""
        match block.kind:
            case "label" | "atom":
                counts = self.graphs.node_category_counts
                return 0 <= block.index < len(counts) and block.width == counts[block.index] >= 1
            case "attribute":
                return 0 <= block.index < self.graphs.node_attribute_width and block.width == 1
            case "degree":
                return block.index == 0 and block.width >= 1

    def _check_numbering(self) -> None:
        known, names = self.numbering.vocabularies, self.numbering.attribute_names
        if (known is None) != (names is None):
            raise ValueError("numbering has to have both of vocabularies and attribute_names, or neither")
        if known is not None and names is not None:
            for values, labels, counts in (
                (known.node, names.node_labels, self.graphs.node_category_counts),
                (known.edge, names.edge_labels, self.graphs.edge_category_counts),
            ):
                # Graphs of other kinds than networkx's have categories without values.
                if (values or labels) and (len(values) != len(labels) or tuple(map(len, values)) != counts):
                    raise ValueError(
                        f"the vocabularies in numbering are of {len(values)} features, not those of {counts}"
                    )
        for minima, counts in (
            (self.numbering.node_label_minima, self.graphs.node_category_counts),
            (self.numbering.edge_label_minima, self.graphs.edge_category_counts),
        ):
            if minima is not None and len(minima) != len(counts):
                raise ValueError(f"the label minima in numbering are {minima}, for {len(counts)} features")


def _explained(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"the model is not complete: model.json has no {where}; copy it anew, or fit it again"
    if not where or problem["type"] == "value_error":
        return f"the model contradicts itself: {problem['msg']}; copy it anew, or fit it again"
    return (
        f"the model cannot be used: in model.json, {where} is {_short(problem['input'])}: {problem['msg']}; copy it anew, or "
        "fit it again"
    )


def _short(value: object, length: int = 100) -> str:
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]} ..."
