"""Commands that look at a run folder: status, verify."""

from functools import partial
from typing import TYPE_CHECKING

import click

from wegl_dask.errors import WeglError
from wegl_dask.progress import Progress, counted, format_bytes, format_seconds, format_speed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wegl_dask.status import RunStatus, TrainingStatus


@click.command(short_help="Say how far a run is.")
@click.argument("out")
def status(out: str) -> None:
    """Say how far the run in the folder OUT is, and the trainings on it: whether they are running, killed or finished.

    Nothing is changed, and nothing that is running is disturbed.
    """
    # pyarrow is slow to import.
    from wegl_dask.status import index_ranges, read_status  # noqa: PLC0415
    from wegl_dask.storage import RunFolder  # noqa: PLC0415

    found = read_status(RunFolder(out))
    click.echo(f"{found.location}: {_state(found)}{_advice(found)}")
    if found.planned_rows is not None:
        click.echo(f"input: {counted(found.planned_rows, 'row')}")
    for stage in found.stages:
        missing = stage.missing or ()
        total = f"{stage.parts}" if stage.missing is None else f"{stage.parts} of {stage.parts + len(missing)}"
        graphs = f", {counted(stage.graphs, 'graph')}" if stage.graphs else ""
        speed = ""
        if stage.speed is not None:
            left = format_seconds(stage.speed.seconds_left)
            speed = f", {format_speed(stage.speed.graphs_per_second)}, {left} left"
        parts = "part" if total == "1" else "parts"
        click.echo(f"{stage.name}: {total} {parts}{graphs}, {format_seconds(stage.seconds)} of work{speed}")
        if missing:
            click.echo(f"  missing: {index_ranges(missing)}")
    if found.absent:
        more = f" and {counted(len(found.absent) - 1, 'more file')}" if len(found.absent) > 1 else ""
        how = "" if found.state == "running" else f": {_mending(found, found.absent)}"
        click.echo(f"recorded and not there: {found.absent[0]}{more}{how}")
    click.echo(f"embeddings: {format_bytes(found.n_bytes)}")
    click.echo(f"rejected: {counted(sum(found.rejected.values()), 'row')}")
    for reason, count in found.rejected.items():
        click.echo(f"  {count:,} x {reason}")
    for training in found.trainings:
        advice = "; train it again to go on" if training.state == "stopped" else ""
        click.echo(f"train {training.model}: {_state(training)}{advice}")


def _advice(found: "RunStatus") -> str:
    """Say what to do about a run that is not whole."""
    lacks_parts = any(stage.missing for stage in found.stages)
    if found.obstacle and (found.state == "stopped" or lacks_parts):
        return f"; {found.obstacle}"
    if found.state == "stopped" and found.is_refused:
        return (
            "; it has more rejects than source.max_rejected_fraction allows: see what they are, below, and run it again "
            "with a larger one, or another job"
        )
    if found.state == "stopped":
        return f"; {_going_on(found)}{', ' if found.is_append else ' '}to go on"
    if found.state == "finished" and lacks_parts:
        return "; parts of it are missing: run the job again, which makes them anew"
    return ""


def _mending(found: "RunStatus", paths: "Iterable[str]") -> str:
    """Say what makes files of a run anew that are missing or damaged."""
    from wegl_dask.verify import are_of_append  # noqa: PLC0415

    if found.obstacle:
        return found.obstacle
    is_append = found.is_append and found.state == "stopped" and are_of_append(paths, found.appended)
    return _going_on(found) if is_append else "run the job again"


def _going_on(found: "RunStatus") -> str:
    """Say what makes what is missing."""
    return f"append again, by  wegl-dask append {found.location}" if found.is_append else "run the job again"


def _state(found: "RunStatus | TrainingStatus") -> str:
    """Name the state, and who is at it if anybody is."""
    return f"{found.state} ({found.holder})" if found.holder else found.state


@click.command(short_help="Check a finished run against its records.")
@click.argument("out")
@click.option(
    "--deep",
    is_flag=True,
    help="Look into the rows too: their order, that none is there twice, and that every embedding is the one that is "
    "computed anew from graphs/ and model/, with a plan that is proven optimal. Takes as long as the stage embed. Of a "
    "model that was fitted here: that its points have the mean and the variances it says.",
)
def verify(out: str, *, deep: bool) -> None:
    """Check the finished run in the folder OUT: every part is there, whole, and as it was written.

    Every problem is a line of output, and the exit code is 1 if there is any.
    """
    from wegl_dask.status import read_status  # noqa: PLC0415
    from wegl_dask.storage import RunFolder  # noqa: PLC0415
    from wegl_dask.verify import verify_run  # noqa: PLC0415

    folder = RunFolder(out)
    problems = verify_run(folder, deep=deep, progress=partial(Progress, brief=True))
    for problem in problems:
        click.echo(str(problem))
    if problems:
        count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
        found = read_status(folder)
        if found.state == "running":
            raise WeglError(
                f"{folder.location()} has {count}, and a run is writing in it: look at it when that has ended"
            )
        if found.obstacle:
            raise WeglError(f"{folder.location()} has {count}: {found.obstacle}")
        how = _mending(found, [problem.path for problem in problems])
        raise WeglError(
            f"{folder.location()} has {count}: {how}, which makes anew what is missing or damaged. A part with "
            "wrong rows, whose bytes are as they were written, is not made anew before it is removed"
        )
    if deep and not folder.keeps_graphs():
        click.echo("graphs/ was not kept: the embeddings were not computed anew")
    click.echo(f"{folder.location()}: every part is there and as it was written")
