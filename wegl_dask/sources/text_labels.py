"""Labels as texts in columns: whether they are classes or numbers, and what each text means."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from wegl_dask.errors import SourceError
from wegl_dask.sources.base import LabelSchema

MISSING = frozenset({"", "NA", "NaN", "nan", "NAN", "null", "NULL"})
"""Texts that stand for an unknown label."""

MAX_CLASSES = 10_000

_EXACT = 2**53
"""Whole numbers below this are floats of their own."""

_SHOWN_CHARACTERS = 40


def survey_is_needed(task: str, targets: Sequence[str]) -> bool:
    """Say whether the labels have to be looked at before it is known what they are."""
    return len(targets) == 1 and task in {"auto", "classification"}


@dataclass
class LabelSurvey:
    """The different labels of one column.

    Attributes
    ----------
    texts : set of str
        Those seen, unknown ones left out; once there are more than `MAX_CLASSES`, no more are added.
    all_numbers : bool
        Whether every label seen is a number, those left out of `texts` included.
    """

    texts: set[str] = field(default_factory=set)
    all_numbers: bool = True

    def add(self, text: str | None) -> None:
        """Look at one more label."""
        text = (text or "").strip()
        if text in MISSING or text in self.texts:
            return
        self.all_numbers = self.all_numbers and _number(text) is not None
        if len(self.texts) <= MAX_CLASSES:
            self.texts.add(text)

    def to_json(self) -> dict[str, Any]:
        """Render as JSON values."""
        return {"texts": sorted(self.texts), "all_numbers": self.all_numbers}

    @classmethod
    def merged(cls, surveys: Iterable[dict[str, Any]]) -> "LabelSurvey":
        """Put together what `to_json` gave of several parts of the input."""
        result = cls()
        for survey in surveys:
            result.all_numbers = result.all_numbers and survey["all_numbers"]
            result.texts.update(survey["texts"])
        return result


def label_schema(task: str, targets: Sequence[str], survey: LabelSurvey) -> LabelSchema:
    """Decide what the labels are.

    Parameters
    ----------
    task : {"auto", "none", "classification", "regression", "multitask"}
    targets : sequence of str
        The columns that hold labels.
    survey : LabelSurvey
        Of the only target, where `survey_is_needed`; it is not looked at otherwise.

    Raises
    ------
    SourceError
        If the column that is to hold classes has more than `MAX_CLASSES` different texts; or if ``task = "auto"``, and
        there are texts among numbers that are not whole.

    Notes
    -----
    With ``task = "auto"`` a single column holds classes if any label is no number, or all are 0 or 1. Classes are
    sorted by their text, or by their value if all are numbers; then equal numbers are one class, however written.

    Examples
    --------
    >>> label_schema("auto", ["active"], LabelSurvey({"1", "0", "0.0"}))
    LabelSchema(kind='class', class_names=('0', '1'), task_names=())
    """
    if task == "none" or not targets:
        return LabelSchema()
    if task == "multitask" or len(targets) > 1:
        return LabelSchema("tasks", task_names=tuple(targets))
    if task == "regression":
        return LabelSchema("target")
    if not survey.texts:
        return LabelSchema()
    numbers = {number for text in survey.texts if (number := _exact_number(text)) is not None}
    if task == "auto" and not survey.all_numbers:
        _refuse_mixture(survey.texts, targets[0])
    if task == "auto" and survey.all_numbers and not numbers <= {0.0, 1.0}:
        return LabelSchema("target")
    if len(survey.texts) > MAX_CLASSES:
        raise SourceError(
            f"column {targets[0]!r} has more than {MAX_CLASSES} different labels, for example "
            f"{_shown(min(survey.texts))}: too many for classes; "
            'set task = "regression", or take it out of source.targets'
        )
    names = map(_number_name, sorted(numbers)) if survey.all_numbers else sorted(survey.texts)
    return LabelSchema("class", class_names=tuple(names))


def _refuse_mixture(texts: Iterable[str], column: str) -> None:
    """Refuse texts of which some are measurements, and others, such as "n/a", are not, where it is not said which count."""
    fractions, others = [], []
    for text in texts:
        number = _number(text)
        if number is None:
            others.append(text)
        elif not number.is_integer():
            fractions.append(text)
    if fractions and others:
        raise SourceError(
            f"column {column!r} holds numbers, for example {_shown(min(fractions))}, and texts that are none, for example "
            f'{_shown(min(others))}: set task = "regression", which rejects rows with such a text, or task = "classification"'
        )


class LabelError(ValueError):
    """A text that is no label; the message is the reason for the row's rejection."""


class LabelReader:
    """Reads the column ``label`` off the texts of the target columns.

    Examples
    --------
    >>> read = LabelReader(LabelSchema("tasks", task_names=("a", "b")), ["a", "b"])
    >>> read(["0.5", ""])
    [0.5, nan]
    """

    def __init__(self, labels: LabelSchema, targets: Sequence[str]) -> None:
        self._kind = labels.kind
        self._targets = targets
        self._what_targets_hold = "several targets hold each" if labels.kind == "tasks" else "a target holds"
        self._by_text = {name: index for index, name in enumerate(labels.class_names)}
        numbers = [_exact_number(name) for name in labels.class_names]
        self._by_number = {} if None in numbers else {number: index for index, number in enumerate(numbers)}

    def __call__(self, texts: Sequence[str | None]) -> int | float | list[float] | None:
        """Return the label, None if it is unknown, as where there are no targets.

        Raises
        ------
        LabelError
            If a text is neither a label nor missing.
        """
        if not texts:
            return None
        match self._kind:
            case "none":
                return None
            case "class":
                return self._class(texts[0])
            case "target":
                return self._finite(texts[0], self._targets[0])
            case "tasks":
                values = [self._finite(text, column) for text, column in zip(texts, self._targets, strict=True)]
                if all(value is None for value in values):
                    return None
                return [math.nan if value is None else value for value in values]

    def _finite(self, text: str | None, column: str) -> float | None:
        text = (text or "").strip()
        if text in MISSING:
            return None
        value = _number(text)
        if value is None or math.isinf(value):
            raise LabelError(
                f"column {column} holds {_shown(text)}; {self._what_targets_hold} a finite number, or nothing"
            )
        return value

    def _class(self, text: str | None) -> int | None:
        text = (text or "").strip()
        if text in MISSING:
            return None
        index = self._by_text.get(text)
        if index is None:
            index = self._by_number.get(_exact_number(text))
        if index is None:
            raise LabelError(f"column {self._targets[0]} holds {_shown(text)}, which was no class when it was scanned")
        return index


def _number(text: str) -> float | None:
    """Read a number; Python's underscores between digits are none, and neither is NaN."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if "_" in text or math.isnan(value) else value


def _exact_number(text: str) -> float | None:
    """Read a number that names a class: as an int where a float would be that of its neighbours as well."""
    value = _number(text)
    if value is None or not _EXACT <= abs(value) < math.inf:
        return value
    exact = Decimal(text)
    return int(exact) if exact == int(exact) else value


def _number_name(value: float) -> str:
    return str(int(value)) if value == value // 1 else repr(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}...")
