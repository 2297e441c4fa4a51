"""What the labels of a collection are, found from the values that its graphs bring along."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from wegl_dask.errors import SourceError
from wegl_dask.labelled_graphs import Label, label_order, plain_label, sorted_labels
from wegl_dask.plain_graphs import UnusableGraphError
from wegl_dask.sources.base import LabelKind, LabelSchema

Labels: TypeAlias = list[Label | None]
"""The labels of one graph; empty where it has none, None where one is unknown."""


def read_labels(name: str, value: Any) -> Labels:
    """Check the label of one graph: None, a text, a number, or a sequence of those. NaN is unknown.

    Raises
    ------
    UnusableGraphError
        If it is something else, or infinite; `name` is what the message calls it.
    """
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    labels: Labels = []
    for single in values:
        label = plain_label(single)
        unknown = single is None or (isinstance(single, float) and math.isnan(single))
        if label is None and not unknown:
            raise UnusableGraphError(f"{name} is {value!r}; a text, finite numbers or nothing is needed")
        labels.append(label)
    return labels


def tally_labels(graphs: Iterable[Labels]) -> dict[str, Any]:
    """Sum up the labels of some graphs, as JSON values for `decide_labels`; those without labels do not count.

    Returns
    -------
    dict
        The number of labels of a graph, as text, to what is known of the graphs with so many: ``count``, the number of
        graphs; ``real``, whether a label is of a real type; ``text`` and ``fraction``, examples of a label that is a
        text and of one that is no whole number, or None; ``distinct``, the texts and whole numbers of single labels.
    """
    tallies: dict[str, Any] = {}
    for labels in graphs:
        if not labels:
            continue
        tally = tallies.setdefault(
            str(len(labels)), {"count": 0, "real": False, "text": None, "fraction": None, "distinct": set()}
        )
        tally["count"] += 1
        for label in labels:
            if isinstance(label, str):
                tally["text"] = label
            elif isinstance(label, float):
                tally["real"] = True
                if not label.is_integer():
                    tally["fraction"] = label
                    continue
            if label is not None and len(labels) == 1:
                tally["distinct"].add(int(label) if isinstance(label, float) else label)
    for tally in tallies.values():
        tally["distinct"] = list(sorted_labels(tally["distinct"]))
    return tallies


def decide_labels(tallies: Sequence[Mapping[str, Any]], task: str, where: str) -> tuple[LabelSchema, tuple[Label, ...]]:
    """Decide what the labels of a collection are.

    A graph has as many labels as most graphs have. If `task` is "auto", several labels are tasks, texts and whole
    numbers are classes, and labels of a real type are targets. A text and a number that read alike, such as "1" and 1,
    are one class, as they are in text files.

    Parameters
    ----------
    tallies : sequence of dict
        From `tally_labels`, one a piece.
    task : str
        The job's ``task``.
    where : str
        What messages call the place of the labels.

    Returns
    -------
    labels : LabelSchema
    classes : tuple of str or int
        The classes as the graphs have them, in the order of their index.

    Raises
    ------
    SourceError
        If the labels are not what `task` says, or mixed.
    """
    counts: dict[int, int] = {}
    for tally in tallies:
        for text, part in tally.items():
            counts[int(text)] = counts.get(int(text), 0) + part["count"]
    if task == "none" or (task == "auto" and not counts):
        return LabelSchema(), ()
    if not counts:
        raise SourceError(f'{where}: no graph has one, and task = "{task}" needs them; correct the source or the task')
    size = max(counts, key=lambda size: (counts[size], -size))
    parts = [tally[str(size)] for tally in tallies if str(size) in tally]
    kind = _decide_kind(task, size, parts, where)
    if kind == "tasks":
        return LabelSchema(kind, task_names=tuple(f"task_{i}" for i in range(size))), ()
    if kind == "target":
        return LabelSchema(kind), ()
    distinct: set[Label] = set().union(*(part["distinct"] for part in parts))
    classes = sorted_labels(each for each in distinct if isinstance(each, int) or _read_alike(each) not in distinct)
    return LabelSchema(kind, class_names=tuple(map(str, classes))), classes


def encode_labels(found: Labels, labels: LabelSchema, classes: Sequence[Label]) -> Any:
    """Turn the labels of one graph into its value of the column ``label``; None if they are unknown.

    Parameters
    ----------
    found : Labels
    labels : LabelSchema
    classes : sequence of str or int
        From `decide_labels`.

    Raises
    ------
    UnusableGraphError
        If the graph has more or fewer labels than the collection, or a class that was not there before.
    """
    if labels.kind == "none" or not found:
        return None
    size = len(labels.task_names) if labels.kind == "tasks" else 1
    if len(found) != size:
        raise UnusableGraphError(f"the graph has {len(found)} labels; the collection has {size} a graph")
    if labels.kind == "tasks":
        return [math.nan if label is None else float(label) for label in found]
    label = found[0]
    if label is None:
        return None
    if labels.kind == "target":
        # As a double, which Arrow does not make of a whole number that it would have to round.
        return float(label)
    for each in (label, _read_alike(label)):
        if each is not None:
            index = bisect_left(classes, label_order(each), key=label_order)
            if index < len(classes) and classes[index] == each:
                return index
    raise UnusableGraphError(f"the label {label!r} is none of the {len(classes)} classes that were found before")


def _read_alike(label: Label) -> Label | None:
    """Find the text that reads as a whole number does, or the other way round; None where there is none."""
    if not isinstance(label, str):
        return str(int(label)) if label == int(label) else None
    try:
        number = int(label)
    except ValueError:
        return None
    return number if str(number) == label else None


def _decide_kind(task: str, size: int, parts: Sequence[Mapping[str, Any]], where: str) -> LabelKind:
    text = next((part["text"] for part in parts if part["text"] is not None), None)
    fraction = next((part["fraction"] for part in parts if part["fraction"] is not None), None)
    if task == "auto":
        whole = text is not None or not any(part["real"] for part in parts)
        kind: LabelKind = "tasks" if size > 1 else "class" if whole else "target"
    else:
        kinds: dict[str, LabelKind] = {"classification": "class", "regression": "target", "multitask": "tasks"}
        kind = kinds[task]
    if kind != "tasks" and size > 1:
        raise SourceError(f'{where}: most graphs have {size}, and task = "{task}" needs one; set task = "multitask"')
    if kind == "class" and fraction is not None:
        raise SourceError(
            f"{where}: one is {fraction}, which is no class; classes are whole numbers or texts, "
            'so set task = "regression" or correct the labels'
        )
    if kind != "class" and text is not None:
        raise SourceError(
            f"{where}: one is the text {text!r}, and numbers are needed here; "
            'set task = "classification" or correct the labels'
        )
    return kind
