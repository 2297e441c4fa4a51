"""The ring experiment of the paper: mean and geodesics of noisy rings in the embedding, and what noise does to it.

Paper, appendix "Detailed Discussion on Linear Wasserstein Embedding". Makes the rings, runs the job rings.toml beside
this file on them, and draws into the folder of the run::

    python jobs/paper/rings.py
    python jobs/paper/rings.py --set output.path=runs/rings-2 --set source.path=data/rings-2

rings.png has the four panels of the figure: (a) the rings, the reference and one displacement field, (b) the mean,
(c) and (d) the geodesics from a ring to the reference and to another ring. noise.png shows how far the embedding moves
when noise is added to the points (paragraph "Regularity of the Embedding"): as far as the ring itself where the noise is
large, and farther where it is small, since the points of a ring are discrete and the plan can change with any noise.
Needs  pip install 'wegl-dask[plots]'.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wegl_dask.approximation import noise_response
from wegl_dask.canonical import WeightedPoints
from wegl_dask.cluster import open_client
from wegl_dask.errors import MissingDependencyError
from wegl_dask.geometry import geodesic, inverse, mean
from wegl_dask.graphs import GraphBatch, GraphSchema, offsets_from_counts
from wegl_dask.pipeline import run_job
from wegl_dask.reading import read_embeddings
from wegl_dask.run_rows import RunRows
from wegl_dask.shards import write_shard
from wegl_dask.sources.base import LabelSchema
from wegl_dask.spec import GraphParquetTable, JobSpec, read_job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatMatrix = npt.NDArray[np.float64]

RADIAL_NOISE = 0.05
"""Standard deviation of the noise of a ring, as a part of its radius."""

STEPS = np.linspace(0, 1, 5)
NOISE_LEVELS = np.logspace(-4, 0.5, 19)


@dataclass(frozen=True)
class Rings:
    """Noisy rings in the plane.

    Attributes
    ----------
    centres : float64, (n_rings, 2)
    radii : float64, (n_rings,)
    points : list of float64 (n_i, 2)
    """

    centres: FloatMatrix
    radii: FloatMatrix
    points: list[FloatMatrix]


def make_rings(seed: int, n_rings: int = 8) -> Rings:
    """Draw rings of different centre, radius and number of points."""
    rng = np.random.default_rng(seed)
    centres, radii = rng.uniform(-6, 6, (n_rings, 2)), rng.uniform(0.5, 2.5, n_rings)
    points = []
    for centre, radius, count in zip(centres, radii, rng.integers(150, 350, n_rings), strict=True):
        angle, factor = rng.uniform(0, 2 * np.pi, count), rng.normal(1, RADIAL_NOISE, count)
        points.append(centre + radius * factor[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1))
    return Rings(centres, radii, points)


def write_graphs(rings: Rings, folder: Path) -> None:
    """Write the rings as one graph shard: graphs without edges, whose nodes have the coordinates as attributes."""
    n_rings = len(rings.points)
    attributes = np.concatenate(rings.points)
    graphs = GraphBatch(
        schema=GraphSchema(node_attribute_width=2),
        node_offsets=offsets_from_counts(np.array([len(points) for points in rings.points])),
        edge_offsets=np.zeros(n_rings + 1, dtype=np.int64),
        edge_source=np.zeros(0, dtype=np.int64),
        edge_target=np.zeros(0, dtype=np.int64),
        node_categories=np.zeros((len(attributes), 0), dtype=np.int64),
        node_attributes=attributes,
        edge_categories=np.zeros((0, 0), dtype=np.int64),
        edge_attributes=np.zeros((0, 0)),
    )
    rows = pa.table(
        {
            "graph_id": [f"ring-{ring}" for ring in range(n_rings)],
            "source_file": ["rings.py"] * n_rings,
            "source_row": pa.array(range(n_rings), pa.int64()),
            "label": pa.nulls(n_rings, LabelSchema().arrow_type),
            "split": pa.nulls(n_rings, pa.string()),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_shard(folder / "part-00000.parquet", graphs, rows, LabelSchema())


def centre_and_radius(points: FloatMatrix) -> tuple[FloatMatrix, float, float]:
    """Centre of a point set, and mean and standard deviation of the distance from it."""
    centre = points.mean(axis=0)
    distance = np.linalg.norm(points - centre, axis=1)
    return centre, float(distance.mean()), float(distance.std())


def draw_rings(axes: Sequence["Axes"], rings: Rings, phi: FloatMatrix, reference: FloatMatrix) -> None:
    """Draw the four panels."""
    first, second = (int(np.argmin(rings.centres[:, 0])), int(np.argmax(rings.centres[:, 0])))
    data, average, to_reference, to_other = axes
    for points in rings.points:
        _scatter(data, points, "tab:blue")
    _scatter(data, reference, "black")
    target = inverse(phi[first], reference)
    arrow = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.002, "color": "tab:gray", "alpha": 0.5}
    data.quiver(*reference.T, *(target - reference).T, **arrow)
    data.set_title("(a) rings, reference (black), displacements to one ring", fontsize=9)

    for points in rings.points:
        _scatter(average, points, "lightgray")
    _scatter(average, mean(phi, reference), "tab:red")
    average.set_title("(b) mean of the embeddings", fontsize=9)

    for panel, end, title in (
        (to_reference, np.zeros_like(phi[0]), "(c) from a ring to the reference"),
        (to_other, phi[second], "(d) from a ring to another"),
    ):
        for t, points in zip(STEPS, geodesic(phi[first], end, STEPS, reference), strict=True):
            _scatter(panel, points, (float(t), 0.2, 1 - float(t)))
        panel.set_title(title, fontsize=9)
    for panel in axes:
        panel.set_aspect("equal", adjustable="datalim")


def draw_noise(axes: "Axes", moved: FloatMatrix, noise: FloatMatrix) -> None:
    """Draw how far embeddings move against the level of the noise: the median of the rings, and their range."""
    for distances, colour, name in (
        (moved, "tab:red", "|phi(mu) - phi(mu + noise)|"),
        (noise, "tab:blue", "W_2(mu, mu + noise)"),
    ):
        axes.plot(NOISE_LEVELS, np.median(distances, axis=1), color=colour, label=name)
        axes.fill_between(NOISE_LEVELS, distances.min(axis=1), distances.max(axis=1), color=colour, alpha=0.2)
    axes.plot(
        NOISE_LEVELS, np.sqrt(2) * NOISE_LEVELS, color="black", linestyle=":", label="root mean square of the noise"
    )
    axes.set(xscale="log", yscale="log", xlabel="standard deviation of the noise along an axis", ylabel="distance")
    axes.legend()


def report(rings: Rings, phi: FloatMatrix, reference: FloatMatrix) -> None:
    """Print the mean ring beside the one that the rings have on average, which is their Wasserstein barycenter."""
    for name, points, centre, radius in (
        ("mean", mean(phi, reference), rings.centres.mean(axis=0), rings.radii.mean()),
        ("half way", *_half_way(rings, phi, reference)),
    ):
        found_centre, found_radius, width = centre_and_radius(points)
        print(
            f"{name}: a ring around ({found_centre[0]:.2f}, {found_centre[1]:.2f}) of radius {found_radius:.2f} +- {width:.2f}; "
            f"the truth is ({centre[0]:.2f}, {centre[1]:.2f}) and {radius:.2f} +- {RADIAL_NOISE * radius:.2f}"
        )


def run(spec: JobSpec) -> None:
    """Make the rings, embed them and draw both figures."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError.for_extra("matplotlib", "plots") from error
    mpl.use("agg")
    rings = make_rings(spec.seed)
    if not isinstance(spec.source, GraphParquetTable) or not isinstance(spec.source.path, str):
        raise SystemExit(
            'the rings are written to one file, which source.path names, and source.kind is "graph_parquet"'
        )
    write_graphs(rings, Path(spec.source.path))
    with open_client(spec.cluster) as client:
        run_job(spec, client)
    phi, rows = read_embeddings(spec.output.path).X.astype(np.float64), RunRows.open(spec.output.path)
    reference = rows.model.reference
    report(rings, phi, reference)

    figure = Figure(figsize=(12, 12), layout="constrained")
    draw_rings(figure.subplots(2, 2).ravel(), rings, phi, reference)
    _save(figure, Path(spec.output.path) / "rings.png")
    figure = Figure(figsize=(7, 5), layout="constrained")
    points: WeightedPoints = rows.points(np.arange(rows.n_rows))
    draw_noise(figure.subplots(), *noise_response(points, reference, NOISE_LEVELS, seed=spec.seed))
    _save(figure, Path(spec.output.path) / "noise.png")


def _half_way(rings: Rings, phi: FloatMatrix, reference: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix, float]:
    first, second = (int(np.argmin(rings.centres[:, 0])), int(np.argmax(rings.centres[:, 0])))
    points = geodesic(phi[first], phi[second], 0.5, reference)
    ends = [first, second]
    return points, rings.centres[ends].mean(axis=0), float(rings.radii[ends].mean())


def _scatter(axes: "Axes", points: FloatMatrix, colour: Any) -> None:
    x, y = points.T
    axes.scatter(x, y, s=4, color=colour, linewidths=0)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main() -> None:
    """Read the job beside this file and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="set a key of the job"
    )
    arguments = parser.parse_args()
    run(read_job(Path(__file__).with_suffix(".toml"), arguments.overrides))


if __name__ == "__main__":
    main()
