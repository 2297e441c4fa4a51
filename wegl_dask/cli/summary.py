"""What a command has to say at its end: the summary of a run, and what a check has found."""

from typing import TYPE_CHECKING

import click

from wegl_dask.progress import counted, format_bytes, format_seconds, format_speed, one_line, shortened
from wegl_dask.spec import JobSpec

if TYPE_CHECKING:
    from wegl_dask.checking import Finding
    from wegl_dask.pipeline import RunSummary
    from wegl_dask.sources.base import SourcePlan

_LABELS = {"none": "none", "target": "one number a graph"}


def print_summary(spec: JobSpec, summary: "RunSummary") -> None:
    """Print what a run has made, how long it took, and how to read it."""
    embedded = summary.n_points > 0
    say = click.echo
    say(
        f"\n{spec.name}: {counted(summary.rows, 'graph')} {'embedded' if embedded else 'read'}, "
        f"{counted(summary.rejected, 'row')} rejected"
    )
    for reason, count in summary.reasons.items():
        say(f"  {count:,} x {one_line(reason)}")
    if summary.rejected:
        say(f"  each with its id and reason in {spec.output.path}/rejected")
    for name, count in summary.repairs.items():
        if count:
            say(f"  {count:,} {name.replace('_', ' ')}")
    for note in summary.notes:
        say(f"  {note}")
    if embedded:
        say(
            f"N = {summary.n_points} reference points, d = {summary.dimension}: vectors of {summary.n_points * summary.dimension}"
        )
        if summary.solved:
            say(f"transport plans: {', '.join(f'{count:,} {name}' for name, count in summary.solved.items())}")
    if not summary.parts_made:
        say("everything was there already: nothing was computed")
    stages = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in summary.stage_seconds.items())
    total = sum(summary.stage_seconds.values())
    # Of a run that was continued, or a few parts that were made anew, it would count graphs that were there.
    is_whole = summary.parts_made >= (2 if embedded else 1) * summary.shards > 0
    speed = f", {format_speed(summary.rows / total)}" if is_whole else ""
    say(f"seconds: {stages}; {format_seconds(total)} in all stages{speed}")
    folder = "data" if embedded else "graphs"
    made = f"{counted(summary.shards, 'part')} in {folder}/, {format_bytes(summary.n_bytes)}"
    say(f"output: {spec.output.path} ({made if summary.shards else 'as it was'})")
    if embedded:
        say("read it with:")
        say("  import wegl_dask")
        say(f"  e = wegl_dask.read_embeddings({spec.output.path!r}); print(e.X.shape)")


def print_finding(spec: JobSpec, finding: "Finding") -> None:
    """Print what a job would read and write."""
    say = click.echo
    say(f"{spec.name}: the job can be run")
    pieces = finding.pieces
    more = f", and {len(pieces) - 1} more" if len(pieces) > 1 else ""
    say(
        f"source: {spec.source.kind}, about {finding.estimated_nodes:,} nodes; {one_line(shortened(pieces[0], 100))}{more}"
    )
    if finding.plan is None:
        opened = f"; {finding.opened} of {counted(len(pieces), 'file')} opened" if finding.opened else ""
        say(f"  too large to be read through here{opened}")
    else:
        for line in _plan_lines(finding.plan):
            say(f"  {one_line(line)}")
    if finding.known_labels:
        known = ", ".join(f"{count:,} of {name}" for name, count in finding.known_labels.items())
        say(f"  labels that are known: {one_line(shortened(known, 200))}")
    if finding.refused_labels:
        why = one_line(shortened(finding.refused_why, 200))
        say(f"  to be rejected for a label: {counted(finding.refused_labels, 'row')}; the first is {why}")
    say(f"node features: {finding.node_features or 'chosen by what the graphs have'}")
    say(f"edge features: {finding.edge_features or 'labels where the graphs have them, else none'}")
    say(f"output: {finding.folder}: {finding.folder_state}")


def _plan_lines(plan: "SourcePlan") -> list[str]:
    cuts = [cut for unit in plan.units for cut in unit.cuts]
    kind, labels, schema = plan.labels.kind, plan.labels, plan.schema
    if kind == "class":
        what = f"{len(labels.class_names)} classes ({shortened(', '.join(labels.class_names), 100)})"
    elif kind == "tasks":
        what = f"{counted(len(labels.task_names), 'task')} ({shortened(', '.join(labels.task_names), 100)})"
    else:
        what = _LABELS[kind]
    lines = [
        f"{counted(sum(cut.n_rows for cut in cuts), 'row')}, to be cut into {counted(len(cuts), 'shard')}",
        f"labels: {what}; split: {'yes' if plan.has_split else 'no'}",
        f"nodes: categories {list(schema.node_category_counts)}, {counted(schema.node_attribute_width, 'attribute')}",
        f"edges: categories {list(schema.edge_category_counts)}, {counted(schema.edge_attribute_width, 'attribute')}",
    ]
    return [*lines, f"passed through: {', '.join(plan.extra_columns)}"] if plan.extra_columns else lines
