"""Commands that embed with a model that is there already: transform, append."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import tomli_w

from wegl_dask.cli.jobs import cluster_options, cluster_overrides, on_cluster, overwrite_option, prepare_workers
from wegl_dask.cli.summary import print_summary
from wegl_dask.errors import JobFileError
from wegl_dask.spec import JobSpec
from wegl_dask.toml import read_toml

if TYPE_CHECKING:
    from wegl_dask.known_rows import RowKey

Command = TypeVar("Command", bound=Callable[..., Any])

TRANSFORMED_TABLES = ("name", "task", "source", "output", "cluster", "train")
"""Keys and tables that a transform takes from a job file; what shapes the embedding is the model's."""


def _source_options(command: Command) -> Command:
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key, such as source.path=new.smi. May be repeated.",
    )(command)
    return click.option(
        "--source",
        "job",
        type=click.Path(dir_okay=False),
        help="Job file whose table [source] says what to read, with its task and its tables [output] and [cluster].",
    )(command)


@click.command(short_help="Embed graphs with a model that was fitted before.")
@click.argument("model")
@_source_options
@click.option("--output", help="The run folder; output.path of the job file if not given.")
@cluster_options
@overwrite_option
def transform(
    model: str,
    job: str | None,
    overrides: tuple[str, ...],
    output: str | None,
    scheduler: str | None,
    *,
    insecure: bool,
    overwrite: bool,
) -> None:
    """Embed graphs with MODEL: the run folder of a job, or the folder that WEGL.save wrote.

    The source is that of a job file, which may have no other table; what else shapes the embedding is the model's. The
    result is a run folder like that of a job, with a copy of the model, and is resumed in the same way. Categories
    that the fit has not seen are fine, graphs with categories outside its vocabulary are rejected, and other numbers
    of features are an error.

    A job file with the key model.path does the same with  wegl-dask run.

    \b
    Examples:
      wegl-dask transform runs/chembl --source june.toml --output runs/june
      wegl-dask transform runs/chembl --source a.toml --set source.path=b.smi
    """  # noqa: D301  click wants the control character
    values = {} if job is None else {key: value for key, value in _read(job).items() if key in TRANSFORMED_TABLES}
    values["model"] = {"path": model}
    if output is not None:
        if not isinstance(values.setdefault("output", {}), dict):
            raise JobFileError(f"{job}: output = {values['output']!r}: it must be a table, [output]")
        values["output"]["path"] = output
    overrides = (*overrides, *cluster_overrides(scheduler, insecure=insecure))
    spec = JobSpec.from_toml(tomli_w.dumps(values), overrides, where=job or "wegl-dask transform")
    prepare_workers(spec)
    from wegl_dask.pipeline import refuse_early, run_job  # noqa: PLC0415  Dask is slow to import

    print_summary(
        spec, on_cluster(spec, run_job, before=partial(refuse_early, overwrite=overwrite), overwrite=overwrite)
    )


@click.command(short_help="Embed the rows that are new to a finished run.")
@click.argument("out")
@_source_options
@click.option(
    "--by-id",
    is_flag=True,
    help="Know a row by its id, and not by its file and number: for files that are written anew each time. Rows without an "
    "id are rejected.",
)
@cluster_options
def append(
    out: str, job: str | None, overrides: tuple[str, ...], scheduler: str | None, *, insecure: bool, by_id: bool
) -> None:
    """Embed what is new in the source of the finished run OUT, with its model, into new parts of its folder data/.

    Run night after night, it does what has come since. By default a row is known by its file and its number in it: new
    files of a folder or glob are read, and new rows at the end of files; a file that changed otherwise is an error (where
    graphs were not kept, a graph that has as many nodes as before is taken to be the same).
    With --by-id the whole source is read and rows whose id is new are embedded; then a file that is written anew needs
    a new name. In both cases rows that were rejected before are not tried again.

    The source is that of the run; --source and --set name another one with the same features, labels and columns. If
    the input is at fault the run stays as it was. One that was killed is finished by the next append, also of another
    source, or given up by  wegl-dask run,  which makes parts anew that are lost or damaged, too.

    \b
    Examples:
      wegl-dask append runs/chembl
      wegl-dask append runs/chembl --by-id --set source.path=june.csv
    """  # noqa: D301  click wants the control character
    from wegl_dask.appending import append_job, append_spec, refuse_append_early  # noqa: PLC0415

    overrides = (*overrides, *cluster_overrides(scheduler, insecure=insecure))
    spec = append_spec(out, None if job is None else _text(job), overrides)
    key: RowKey = "id" if by_id else "row"
    print_summary(spec, on_cluster(spec, append_job, before=partial(refuse_append_early, key=key), key=key))


def _text(job: str) -> str:
    try:
        return Path(job).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JobFileError(f"cannot read the job file {job}: {error}") from error


def _read(job: str) -> dict[str, Any]:
    try:
        return read_toml(_text(job))
    except ValueError as error:
        raise JobFileError(f"{job} is not TOML: {error}") from error
