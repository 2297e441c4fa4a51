"""The command that measures distances of a run: approximation."""

import json
import math

import click

from wegl_dask.progress import Progress, counted


@click.command(short_help="Measure how well distances of embeddings stand for Wasserstein distances.")
@click.argument("out")
@click.option(
    "--pairs", type=click.IntRange(min=1), default=2000, show_default=True, help="Pairs of graphs to measure."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the choice of pairs.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def approximation(out: str, pairs: int, seed: int, *, as_json: bool) -> None:
    """Compare distances of embeddings with exact 2-Wasserstein distances, on random pairs of the graphs in OUT.

    The points of the graphs are computed again, from the graph shards and the model of the run.
    """
    from wegl_dask.approximation import measure_approximation  # noqa: PLC0415  SciPy is slow to import

    found = measure_approximation(out, pairs, seed=seed, progress=Progress).summary()
    if as_json:
        click.echo(json.dumps({name: None if math.isnan(value) else value for name, value in found.items()}, indent=2))
        return
    pairs_of_graphs = f"{counted(int(found['pairs']), 'pair')} of {counted(int(found['graphs']), 'graph')}, seed {seed}"
    if found["equal_pairs"] == found["pairs"]:
        click.echo(f"{pairs_of_graphs}: all of equal points, W_2 = 0, so that there is nothing to be off from")
        return
    click.echo(f"{pairs_of_graphs}; the exact W_2 is {found['mean_wasserstein']:.4g} on average")
    if found["equal_pairs"]:
        click.echo(f"{counted(int(found['equal_pairs']), 'pair')} of equal points, W_2 = 0, left out below")
    if found["entropic_graphs"]:
        entropic = counted(int(found["entropic_graphs"]), "graph")
        click.echo(f"{entropic} with an entropic plan, whose embedding is further off")

    def say(distance: str, text: str) -> None:
        click.echo(f"  {distance:<40} {text}")

    click.echo("relative to it:")
    say(
        "|phi_i - phi_j|",
        f"off by {found['mean_relative_error']:.2%} on average (median {found['median_relative_error']:.2%}, largest "
        f"{found['largest_relative_error']:.2%}), too small for {found['fraction_below']:.2%} of the pairs",
    )
    say("generalised geodesic distance", f"off by {found['generalized_mean_relative_error']:.2%}, never too small")
    say(
        "sqrt(|phi_i - phi_j|^2 + r_i^2 + r_j^2)",
        f"a bound: {found['bound_mean_ratio']:.4g} times as large on average, {found['bound_largest_ratio']:.4g} times at "
        f"most, broken by {counted(int(found['bound_broken']), 'pair')}",
    )
    say(
        "|phi_i - phi_j| + r_i + r_j",
        f"a wider bound: {found['triangle_bound_mean_ratio']:.4g} times as large on average",
    )
