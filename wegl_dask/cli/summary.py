"""The short summary that a run ends with."""

from typing import TYPE_CHECKING

import click

from wegl_dask.progress import format_bytes, format_seconds
from wegl_dask.spec import JobSpec

if TYPE_CHECKING:
    from wegl_dask.pipeline import RunSummary


def print_summary(spec: JobSpec, summary: "RunSummary") -> None:
    """Print what a run has made, how long it took, and how to read it."""
    embedded = summary.n_points > 0
    say = click.echo
    say(
        f"\n{spec.name}: {summary.rows:,} graphs {'embedded' if embedded else 'read'}, {summary.rejected:,} rows rejected"
    )
    for reason, count in summary.reasons.items():
        say(f"  {count:,} x {reason}")
    for name, count in summary.repairs.items():
        if count:
            say(f"  {count:,} {name.replace('_', ' ')}")
    for note in summary.notes:
        say(f"  {note}")
    if embedded:
        say(
            f"N = {summary.n_points} reference points, d = {summary.dimension}: vectors of {summary.n_points * summary.dimension}"
        )
        solved = ", ".join(f"{count:,} {name}" for name, count in summary.solved.items())
        say(f"transport plans: {solved}")
    if not summary.parts_made:
        say("everything was there already: nothing was computed")
    stages = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in summary.stage_seconds.items())
    total = sum(summary.stage_seconds.values())
    say(f"seconds: {stages}; {format_seconds(total)} in all, {summary.rows / total:,.0f} graphs/s")
    folder = "data" if embedded else "graphs"
    say(f"output: {summary.location} ({summary.shards} parts in {folder}/, {format_bytes(summary.n_bytes)})")
    if embedded:
        say("read it with:")
        say("  import wegl_dask")
        say(f"  e = wegl_dask.read_embeddings({summary.location!r}); print(e.X.shape, e.y.shape)")
