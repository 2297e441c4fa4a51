"""The keys of the job file as documentation: what each is called, what it may hold and what it means."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

REQUIRED = "required"
NOT_SET = "not set"


class DocumentedKey(NamedTuple):
    """A key of the job file.

    Attributes
    ----------
    key : str
        With its table, such as ``diffusion.layers``.
    kind : str
        The type of its value in words, such as ``integer``, or the values allowed.
    default : str
        As it is written in TOML; ``required``, or ``not set``.
    meaning : str
    """

    key: str
    kind: str
    default: str
    meaning: str

    @property
    def table(self) -> str:
        """The table that the key is in; "" at the top."""
        return self.key.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """The key without its table."""
        return self.key.rpartition(".")[2]


def table_keys(table: type[BaseModel], prefix: str = "") -> list[DocumentedKey]:
    """List the keys of a table and of the tables in it.

    Where a table has one form for each ``kind``, such as ``[source]``, a key that not all of them have says which do.
    """
    keys: list[DocumentedKey] = []
    for name, field in table.model_fields.items():
        key = f"{prefix}{name}"
        forms = table_forms(field)
        if forms:
            keys += _keys_of_forms(forms, f"{key}.")
        elif inner := _inner_table(field.annotation):
            keys += table_keys(inner, f"{key}.")
        else:
            keys.append(DocumentedKey(key, _type_name(field.annotation), _default_text(field), field.description or ""))
    return keys


def table_forms(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """Find the forms of a table that has one for each ``kind``, by kind; empty for every other field."""
    if field.discriminator is None:
        return {}
    forms = get_args(field.annotation)
    return {get_args(form.model_fields["kind"].annotation)[0]: form for form in forms}


def _keys_of_forms(forms: Mapping[str, type[BaseModel]], prefix: str) -> Iterator[DocumentedKey]:
    yield DocumentedKey(f"{prefix}kind", " | ".join(f'"{kind}"' for kind in forms), REQUIRED, "What is read.")
    found: dict[str, dict[DocumentedKey, list[str]]] = {}
    for kind, form in forms.items():
        for key in table_keys(form, prefix):
            if key.leaf != "kind":
                found.setdefault(key.key, {}).setdefault(key, []).append(kind)
    for variants in found.values():
        first = next(iter(variants))
        if len(variants) == 1 and len(variants[first]) == len(forms):
            yield first
        else:
            meanings = (f"{', '.join(kinds)}: {key.meaning}" for key, kinds in variants.items())
            yield first._replace(meaning=" ".join(meanings))


def _inner_table(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    return NOT_SET if field.default is None else json.dumps(field.default)


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if arguments:
        return " | ".join(_type_name(argument) for argument in arguments if argument is not type(None))
    return {str: "text", int: "integer", float: "number", bool: "true | false"}[annotation]
