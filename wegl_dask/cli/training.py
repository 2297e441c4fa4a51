"""The command that trains a model on a run's embeddings: train."""

from typing import Any, get_args

import click

from wegl_dask.errors import JobFileError
from wegl_dask.progress import format_seconds
from wegl_dask.spec import JobSpec
from wegl_dask.stopping import stopped_by_signals
from wegl_dask.training.names import MODEL_NAMES, MetricName, ProtocolName, training_folder


@click.command(short_help="Train a model on the embeddings of a run, and measure it.")
@click.argument("out")
@click.option("--model", type=click.Choice(MODEL_NAMES), help="Model; train.model if not given.")
@click.option(
    "--protocol",
    type=click.Choice(get_args(ProtocolName)),
    help="The data's own split, or cross-validation; train.protocol if not given.",
)
@click.option(
    "--metric",
    type=click.Choice(get_args(MetricName)),
    help="What candidates are compared by; train.metric if not given.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), help="split: fits of the chosen candidate; train.seeds if not given."
)
@click.option("--folds", type=click.IntRange(min=2), help="cv: number of folds; train.folds if not given.")
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    help="automl: seconds of one search; train.time_budget if not given.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set seed, or a key of the table [train] or [cluster], such as cluster.workers=4. May be repeated.",
)
def train(out: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Train a model on the embeddings of the finished run in OUT, and write what it is worth to OUT/train/MODEL/.

    Candidates of a grid are compared, the best is fitted anew and measured. With --protocol split they are fitted to
    "train", compared on "valid" and the best is measured on "test". With --protocol cv there are two numbers: "best
    configuration", the best mean over the folds as in the paper, which is optimistic; and "nested", where each fold is
    scored by what was chosen without it.

    Written are metrics.json, predictions.parquet (graph_id, split or fold, y, score) and the fitted model, model.skops.
    A training that was stopped goes on with the fits that were done. The fits are spread over the processes, or the Dask
    cluster, of the job's table [cluster].

    \b
    Examples:
      wegl-dask train runs/quickstart --model ridge --protocol cv
      wegl-dask train runs/ogbg-molhiv --model random-forest --seeds 10
    """  # noqa: D301  click wants the control character
    # scikit-learn and pyarrow are slow to import.
    from wegl_dask.storage import RunFolder  # noqa: PLC0415
    from wegl_dask.training.job import train as train_model  # noqa: PLC0415
    from wegl_dask.training.results import results_table  # noqa: PLC0415

    run = RunFolder(out)
    spec = _job(run.job_toml(), run.location("job.toml"), overrides, options)
    with stopped_by_signals():
        metrics = train_model(run, spec.train, spec.cluster, seed=spec.seed)
    click.echo(
        f"\n{spec.name}: {metrics['model']}, {metrics['protocol']}, {metrics['graphs_labelled']:,} graphs with labels, "
        f"vectors of {metrics['width']}"
    )
    for line in results_table(metrics):
        click.echo(f"  {line}")
    before = f", and {metrics['fits_found']:,} fits before it was stopped" if metrics["fits_found"] else ""
    click.echo(f"seconds: {format_seconds(metrics['seconds'])}{before}")
    click.echo(f"output: {out.rstrip('/')}/{training_folder(metrics['model'])}")


def _job(toml: str, where: str, overrides: tuple[str, ...], options: dict[str, Any]) -> JobSpec:
    """Read the job of a run, with the options in place of its keys."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key != "seed" and key.partition(".")[0] not in ("train", "cluster"):
            raise JobFileError(
                f"--set {override}: {key} has no effect on a training, and only seed and the keys of [train] and [cluster] "
                "have: leave it out"
            )
    given = {f"train.{key}": value for key, value in options.items() if value is not None}
    assignments = [f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in given.items()]
    return JobSpec.from_toml(toml, [*overrides, *assignments], where=where)
