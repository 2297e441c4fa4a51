"""Commands that take a job file: run, ingest, check; and init, which writes one."""

import difflib
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wegl_dask import fork_server
from wegl_dask.cli.keys import KeysCommand
from wegl_dask.cli.summary import print_finding, print_summary
from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.logs import LOG_JSON, LoggedProgress, json_lines, log_event, set_levels
from wegl_dask.progress import note
from wegl_dask.spec import JobSpec, read_job
from wegl_dask.stopping import stopped_by_signals

if TYPE_CHECKING:
    from wegl_dask.storage import RunFolder

Command = TypeVar("Command", bound=Callable[..., Any])


def job_arguments(command: Command) -> Command:
    """Give a command the job file and the keys that are set on the command line."""
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key of the job file, such as transport.solver=sinkhorn. May be repeated.",
    )(command)
    return click.argument("job", type=click.Path(dir_okay=False))(command)


def cluster_options(command: Command) -> Command:
    """Add the options ``--scheduler`` and ``--insecure``, which `cluster_overrides` turns into keys."""
    command = click.option(
        "--insecure", is_flag=True, help="Allow connections to other machines that are not encrypted, tcp://."
    )(command)
    return click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on an existing Dask scheduler, such as tls://host:8786, whatever the job file says in [cluster].",
    )(command)


def cluster_overrides(scheduler: str | None, *, insecure: bool) -> tuple[str, ...]:
    """Write the options of `cluster_options` as keys that are set on the command line."""
    # A string in JSON is one in TOML.
    address = () if scheduler is None else ('cluster.kind="scheduler"', f"cluster.address={json.dumps(scheduler)}")
    return (*address, *(["cluster.insecure=true"] if insecure else []))


def overwrite_option(command: Command) -> Command:
    """Add the option ``--overwrite``."""
    return click.option(
        "--overwrite", is_flag=True, help="Clear what an earlier run wrote in the output folder, and start anew."
    )(command)


def log_json_option(command: Command) -> Command:
    """Add the option ``--log-json``, which `on_cluster` and the group of commands look up in the context."""

    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        del parameter
        context.meta[LOG_JSON] = value

    return click.option(
        "--log-json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=keep,
        help="Log on standard error in JSON, one line an event, with its stage, shards and worker.",
    )(command)


@click.command(cls=KeysCommand, short_help="Run a job: graphs in, embeddings in Parquet.")
@job_arguments
@cluster_options
@overwrite_option
@log_json_option
def run(job: str, overrides: tuple[str, ...], scheduler: str | None, *, insecure: bool, overwrite: bool) -> None:
    """Run the job file JOB, or what is missing of it: graphs in, embeddings in Parquet.

    The output folder, output.path, holds the whole state. A job that was stopped, killed or out of space goes on when
    it is run again with the same job file; parts that are whole are not made again. Those that are lost or damaged
    in a finished run are made anew, also where they were appended. Another job file on the same folder is refused.

    \b
    Examples:
      wegl-dask run jobs/quickstart.toml
      wegl-dask run job.toml --set output.path=s3://bucket/run-1
      wegl-dask run job.toml --set transport.solver=sinkhorn --overwrite
      wegl-dask run job.toml --scheduler tls://host:8786
    """  # noqa: D301  click wants the control character
    spec = read_job(job, (*overrides, *cluster_overrides(scheduler, insecure=insecure)))
    prepare_workers(spec)
    from wegl_dask.pipeline import refuse_early, run_job  # noqa: PLC0415  Dask is slow to import, and most commands do without

    print_summary(
        spec, on_cluster(spec, run_job, before=partial(refuse_early, overwrite=overwrite), overwrite=overwrite)
    )


@click.command(short_help="Make the graph shards of a job and stop.")
@job_arguments
@cluster_options
@overwrite_option
@log_json_option
def ingest(job: str, overrides: tuple[str, ...], scheduler: str | None, *, insecure: bool, overwrite: bool) -> None:
    """Read the source of the job file JOB into canonical graph shards, in graphs/ of its output folder, and stop.

    Other jobs can start from the shards, with source.kind = "graph_parquet".
    """
    spec = read_job(job, (*overrides, *cluster_overrides(scheduler, insecure=insecure)))
    prepare_workers(spec)
    from wegl_dask.pipeline import ingest_job, refuse_early  # noqa: PLC0415

    print_summary(
        spec, on_cluster(spec, ingest_job, before=partial(refuse_early, overwrite=overwrite), overwrite=overwrite)
    )


@click.command(short_help="Check a job file and its source without computing.")
@job_arguments
def check(job: str, overrides: tuple[str, ...]) -> None:
    """Check the job file JOB, its source and its output folder, and say what was found.

    The files are opened, the columns and features that the job names are looked for, and so are the packages it needs.
    A source of moderate size is read through, so that bad lines show; a larger one is only opened. A data set that may
    be downloaded and is not there is downloaded. Nothing is embedded or written, and no cluster is started.
    """
    from wegl_dask.checking import check_job  # noqa: PLC0415

    spec = read_job(job, overrides)
    print_finding(spec, check_job(spec))


@click.command(short_help="Write a job file to edit.")
@click.argument("name", required=False)
@click.option(
    "--output", "-o", type=click.Path(), help="File to write; the last part of NAME, with .toml, if not given."
)
def init(name: str | None, output: str | None) -> None:
    """Write the job file NAME, one of those that come with the package, to a file of your own to edit.

    Without NAME the job files there are are listed.
    """
    known = shipped_jobs()
    if name is None:
        click.echo("\n".join(f"{each:24}{_first_comment(path)}".rstrip() for each, path in known.items()))
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise JobFileError(f"there is no job file {name!r}; {hint}")
    target = Path(output or f"{Path(name).name}.toml")
    text = known[name].read_text(encoding="utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise JobFileError(f"{target} is there already; remove it or give another name with --output") from error
    except OSError as error:
        raise JobFileError(f"cannot write {target}: {error.strerror}") from error
    click.echo(f"wrote {target}; run it with  wegl-dask run {target}")


def shipped_jobs() -> dict[str, Any]:
    """Find the job files that come with the package, by name: ``quickstart``, ``paper/mutag``, ..."""
    inside = resources.files("wegl_dask") / "jobs"
    # In a source tree the job files are beside the package, and in the wheel they are inside it.
    root = inside if inside.is_dir() else Path(__file__).parents[2] / "jobs"
    found = {}
    for folder in ("", "paper"):
        for path in sorted((root / folder).iterdir() if folder else root.iterdir(), key=lambda entry: entry.name):
            if path.name.endswith(".toml"):
                found[f"{folder}/{path.name}".lstrip("/").removesuffix(".toml")] = path
    return found


def _first_comment(path: Any) -> str:
    """Return the first sentence of a job file's opening comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"(?<=[.:;])\s", comment)[0].rstrip(".:;")


def prepare_workers(spec: JobSpec) -> None:
    """Let what this machine's workers need be imported by the process that they will be forks of, while this one goes on."""
    if spec.cluster.kind == "local":
        fork_server.start(spec.cluster.local_directory)


def on_cluster(
    spec: JobSpec, function: Callable[..., Any], *, before: Callable[[JobSpec], None], **arguments: Any
) -> Any:
    """Call ``function(spec, client, **arguments)`` with a client on the cluster that the job names.

    ``before(spec)`` is called first, to refuse what needs no workers.
    """
    from wegl_dask.cluster import dashboard_link, open_client  # noqa: PLC0415
    from wegl_dask.storage import RunFolder  # noqa: PLC0415
    from wegl_dask.without_pandas import spare_pandas  # noqa: PLC0415

    prepare_workers(spec)
    spare_pandas()
    logging.basicConfig(format="%(message)s")
    set_levels(debug=click.get_current_context().find_root().params["debug"])
    in_json = click.get_current_context().meta.get(LOG_JSON, False)
    with ExitStack() as stack:
        stack.enter_context(json_lines(sys.stderr) if in_json else nullcontext())
        stack.enter_context(stopped_by_signals())
        before(spec)
        stack.enter_context(_swept(RunFolder(spec.output.path)))
        client = stack.enter_context(open_client(spec.cluster))
        link = dashboard_link(spec.cluster, client)
        if not in_json:
            if link:
                note(f"dashboard: {link}")
            return function(spec, client, **arguments)
        if link:
            log_event("dashboard", f"dashboard: {link}", address=link)
        summary = function(spec, client, progress=LoggedProgress, **arguments)
        log_event("finished", f"{spec.name}: done", summary=asdict(summary))
        return summary


@contextmanager
def _swept(folder: "RunFolder") -> Iterator[None]:
    """Remove the beginnings of files from a run folder when the block, and workers in it, came to an untimely end."""
    try:
        yield
    except BaseException:
        # An object store shows no beginnings. A folder that is no run's is left alone; one that another run holds by now
        # was swept by that one.
        with suppress(WeglError):
            if folder.is_local and folder.job_toml():
                with folder.lock():
                    folder.clean_temporary()
        raise
