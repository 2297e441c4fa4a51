"""What is wrong with a job file, in words: the key, what was found and what is allowed."""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from wegl_dask.job_keys import REQUIRED, DocumentedKey, table_forms, table_keys
from wegl_dask.progress import shortened

_LONGEST = 200
"""Characters of a value in a message."""

_NEAR = 0.6
"""How alike a key must be to be suggested, from 0 to 1."""


def explain(error: ValidationError, table: type[BaseModel]) -> list[str]:
    """Say in one clause each what is wrong with a job: the key, what was found, and what is allowed.

    Parameters
    ----------
    error : pydantic.ValidationError
    table : type of pydantic.BaseModel
        What was validated.
    """
    problems = [_Problem.of(problem, table) for problem in error.errors()]
    # A value that may have several types has an error for each: one that found the right type is the one that matters.
    right_type = {problem.key for problem in problems if problem.item is not None or not problem.is_of_type}
    kept = [
        problem
        for problem in problems
        if problem.item is not None or not problem.is_of_type or problem.key not in right_type
    ]
    return list(dict.fromkeys(clause for problem in kept for clause in problem.clauses()))


class _Problem(NamedTuple):
    """One of pydantic's errors, and where it is.

    Attributes
    ----------
    kind : str
        Pydantic's name of the error.
    key : str
        The key or table, as it is written.
    item : int or None
        Which item of its list.
    value : Any
        What was found there.
    keys : dict of str to DocumentedKey
        The keys that could be there, of the source's kind alone.
    found_kind : str
        Of a table that has one form for each ``kind``, the one that it has; "" elsewhere.
    kinds : dict of str to list of str
        For the keys of such a table, the kinds that have them.
    rule : str
        Pydantic's words for what is allowed.
    """

    kind: str
    key: str
    item: int | None
    value: Any
    keys: Mapping[str, DocumentedKey]
    found_kind: str
    kinds: Mapping[str, list[str]]
    rule: str

    @classmethod
    def of(cls, error: Mapping[str, Any], table: type[BaseModel]) -> "_Problem":
        """Find the place of an error."""
        keys = {key.key: key for key in table_keys(table)}
        path = list(error["loc"])
        found_kind = ""
        kinds: dict[str, list[str]] = {}
        forms = table_forms(table.model_fields[path[0]]) if path and path[0] in table.model_fields else {}
        if len(path) > 1 and path[1] in forms:
            found_kind, prefix = path.pop(1), f"{path[0]}."
            for kind, form in forms.items():
                for documented in table_keys(form, prefix):
                    kinds.setdefault(documented.key, []).append(kind)
            keys = {name: keys[name] for name in keys if not name.startswith(prefix)}
            keys |= {own.key: own for own in table_keys(forms[found_kind], prefix)}
        rule = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
        known = (
            {*keys, *(documented.table for documented in keys.values())}
            if error["type"] != "extra_forbidden"
            else set()
        )
        key, item = _key_and_item(path, known)
        rule = rule.removeprefix("Input should be ")
        return cls(error["type"], key, item, error["input"], keys, found_kind, kinds, rule)

    @property
    def is_of_type(self) -> bool:
        """Whether the value has the wrong type, or is none of the values allowed."""
        return self.kind.endswith(("_type", "_parsing")) or self.kind == "literal_error"

    def clauses(self) -> Iterator[str]:
        """Word the problem."""
        where = self.key if self.item is None else f"{self.key}[{self.item}]"
        match self.kind:
            case "extra_forbidden":
                yield self._unknown_key()
            case "missing":
                needed = [k for k in self.keys.values() if self.key in (k.key, k.table) and k.default == REQUIRED]
                needed = [k for k in needed if k.leaf == "kind"] or needed
                yield from (f"{k.key} is missing: {k.meaning.rstrip('.')}" for k in needed)
            case "union_tag_not_found":
                yield f"{where}.kind is missing: it is {_in_words(self.keys[f'{self.key}.kind'].kind)}"
            case "union_tag_invalid":
                allowed = _in_words(self.keys[f"{self.key}.kind"].kind)
                yield f"{where}.kind = {_shown(self.value.get('kind'))}: it must be {allowed}"
            case "value_error":
                yield self.rule
            case "string_too_short" | "too_short":
                yield f"{where} is empty; leave it out, or give it a value"
            case "string_too_long":
                yield f"{where} = {_shown(self.value)}: it must be one character"
            case _ if self.is_of_type:
                yield f"{where} = {_shown(self.value)}: it must be {self._allowed()}"
            case _:
                yield f"{where} = {_shown(self.value)}: it must be {self.rule}"

    def _allowed(self) -> str:
        if self.key not in self.keys:
            return f"a table, [{self.key}]"
        kind = self.keys[self.key].kind
        if self.item is not None:
            kind = kind.rpartition("list of ")[2]
        return _in_words(kind)

    def _unknown_key(self) -> str:
        table, _, leaf = self.key.rpartition(".")
        if self.key in self.kinds:
            owners = " and ".join(f'"{kind}"' for kind in self.kinds[self.key])
            return f'{self.key} is a key of {table}.kind {owners}, and not of "{self.found_kind}"'
        elsewhere = [key.key for key in self.keys.values() if key.leaf == leaf]
        if len(elsewhere) == 1:
            return f"unknown key {self.key}; did you mean {elsewhere[0]}?"
        there = {key.leaf: key.key for key in self.keys.values() if key.table == table}
        if not table:
            there |= {name: name for name in sorted({key.table for key in self.keys.values()} - {""})}
        near = difflib.get_close_matches(leaf, there, n=1, cutoff=_NEAR)
        if near:
            return f"unknown key {self.key}; did you mean {there[near[0]]}?"
        return f"unknown key {self.key}; there are {', '.join(there.values())}"


def _key_and_item(path: list[Any], known: set[str]) -> tuple[str, int | None]:
    """Split a location into the key or table and the item of its list; what else pydantic puts there is left out."""
    for length in range(len(path), 0, -1):
        key = ".".join(map(str, path[:length]))
        if key in known:
            return key, next((part for part in path[length:] if isinstance(part, int)), None)
    return ".".join(map(str, path)), None


def _in_words(kind: str) -> str:
    """Word a type for a sentence."""
    article = next(
        (word for word, first in (("an ", "integer"), ("a ", "number"), ("a ", "list")) if kind.startswith(first)), ""
    )
    return f"{article}{kind.replace(' | ', ' or ')}"


def _shown(value: Any) -> str:
    try:
        shown = json.dumps(value, ensure_ascii=False)
    except TypeError:
        shown = str(value)
    return shortened(shown, _LONGEST)
