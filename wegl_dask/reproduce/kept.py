"""Results of earlier commands, as their JSON files hold them: read before anything is computed, and when it is added."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.invalid import first_problem
from wegl_dask.records import json_bytes
from wegl_dask.reproduce import molhiv, reference, runtime, tud


def read_kept(folder: Folder, name: str) -> dict[str, Any]:
    """Read the results that a folder holds; empty if there are none.

    Parameters
    ----------
    folder : Folder
    name : {"tud.json", "molhiv.json", "reference.json", "runtime.json"}

    Raises
    ------
    WeglError
        If the file is not what a command has written.
    """
    content = folder.read_if_there(name)
    if content is None:
        return {}
    try:
        kept: dict[str, Any] = json.loads(content)
        _KINDS[name].model_validate(kept)
    except (ValueError, RecursionError) as error:  # pydantic's are among them
        found = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise WeglError(
            f"{folder.location(name)} is damaged, or of another version ({found}). Remove it, and run the commands again "
            "whose results it held: they take what was computed from the steps that are kept"
        ) from error
    return kept


def as_kept(values: dict[str, Any]) -> dict[str, Any]:
    """Render values as they will be read back, to compare them with what is kept."""
    kept: dict[str, Any] = json.loads(json_bytes(values))
    return kept


def begins_with(longer: Sequence[Any], shorter: Sequence[Any]) -> bool:
    """Whether a series is the beginning of another, or all of it."""
    return list(longer[: len(shorter)]) == list(shorter)


def _one_of(known: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
        return name

    return AfterValidator(check)


class _Values(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Computed(_Values):
    date: str
    versions: dict[str, str]


class _How(_Computed):
    earlier: list[_Computed] = []


class _HowSearched(_How):
    seed: int
    layers: list[int]
    shortlisted: int
    constants: dict[str, Any]


class _HowTrained(_How):
    time_budget: FiniteFloat | None


_Series = Annotated[list[FiniteFloat], Field(min_length=1)]


class _Cell(_Values):
    data_set: Annotated[str, _one_of(tud.DATA_SETS + tud.LARGE_DATA_SETS)]
    pooling: Annotated[str, _one_of(tud.POOLINGS)]
    model: Annotated[str, _one_of(tud.METHODS)]
    best: _Series
    held_out: _Series
    nested: _Series | None
    chosen: dict[str, Any]
    n_configurations: int
    how: _HowSearched


class _Row(_Values):
    method: Annotated[str, _one_of(molhiv.METHODS)]
    setting: dict[str, Any]
    candidate: dict[str, Any]
    screened: dict[str, FiniteFloat]
    valid: _Series
    test: _Series
    embedding_valid: list[FiniteFloat]
    embedding_test: list[FiniteFloat]
    together: dict[str, FiniteFloat]
    how: _HowTrained


class _Areas(_Values):
    valid: _Series
    test: _Series
    how: _How


class _Timing(_Values):
    training: FiniteFloat
    inference: FiniteFloat
    measured: FiniteFloat


class _Measured(_Values):
    data_set: str
    n_graphs: int
    mean_nodes: FiniteFloat
    mean_edges: FiniteFloat
    timings: dict[Annotated[str, _one_of(runtime.METHODS)], _Timing]
    how: dict[str, _How]

    @model_validator(mode="after")
    def _says_how(self) -> Self:
        if self.how.keys() != self.timings.keys():
            raise ValueError("timings and how have not the same keys")
        return self


class _Tud(_Values):
    cells: list[_Cell]


class _Molhiv(_Values):
    rows: dict[Annotated[str, _one_of(molhiv.METHODS)], _Row]


class _Reference(_Values):
    kinds: dict[Annotated[str, _one_of(reference.KINDS)], _Areas]


class _Runtime(_Values):
    data_sets: dict[Annotated[str, _one_of(runtime.DATA_SETS)], _Measured]


_KINDS: Mapping[str, type[_Values]] = {
    "tud.json": _Tud,
    "molhiv.json": _Molhiv,
    "reference.json": _Reference,
    "runtime.json": _Runtime,
}
