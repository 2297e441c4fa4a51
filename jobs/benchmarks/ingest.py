"""Measure how fast SMILES become graphs, against RDKit's parser alone on the same strings.

Every candidate is run in turn, several times over; the medians of the CPU time are reported. For example::

    python jobs/benchmarks/ingest.py
    python jobs/benchmarks/ingest.py --path mol.csv.gz --molecules 5000 --json ingest.json
"""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from _measure import finish, parser, shown
from rdkit import Chem, rdBase

from wegl_dask.molecules import graphs_from_smiles
from wegl_dask.sources.base import SourcePlan
from wegl_dask.sources.paths import size_of
from wegl_dask.sources.smiles import SmilesSource
from wegl_dask.spec import SmilesTable

NODES_PER_SHARD = 65_536


def main() -> None:
    """Run the benchmark as the command line says."""
    options = parser(__doc__)
    options.set_defaults(repeats=5)
    options.add_argument("--path", default="package://rdkit/Data/NCI/first_5K.smi", help="a file of SMILES")
    options.add_argument("--smiles-column", default="smiles", help="column that holds them (default: smiles)")
    options.add_argument("--molecules", type=int, default=5000, help="number of molecules, evenly over the file")
    arguments = options.parse_args()
    result = measure(arguments.path, arguments.smiles_column, arguments.molecules, arguments.repeats)
    finish(result, describe(result), arguments, "rdkit", "ogb")


def measure(path: str, smiles_column: str, n_molecules: int, repeats: int) -> dict[str, Any]:
    """Time all candidates, in turn."""
    table = SmilesTable(kind="smiles", path=path, smiles_column=smiles_column, extra_columns=[smiles_column])
    source = SmilesSource(table, "none")
    plan = scan(source)
    shards = [shard for unit in plan.units for shard in source.read(plan, unit)]
    smiles = [text for shard in shards for text in shard.rows.column(smiles_column).to_pylist()]
    n_rows = sum(cut.n_rows for unit in plan.units for cut in unit.cuts)
    smiles = smiles[:: max(1, len(smiles) // n_molecules)][:n_molecules]

    candidates: dict[str, tuple[Callable[[], Any], int]] = {
        "RDKit's parser alone": (lambda: parse_all(smiles), len(smiles)),
        "graphs_from_smiles": (lambda: graphs_from_smiles(smiles), len(smiles)),
        "ogb's smiles2graph": (smiles2graph_of_ogb(smiles), len(smiles)),
        "whole source: scan": (lambda: scan(source), n_rows),
        "whole source: read": (lambda: [None for unit in plan.units for _ in source.read(plan, unit)], n_rows),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    with rdBase.BlockLogs():
        for _ in range(repeats):
            for name, (run, n_items) in candidates.items():
                start = time.process_time()
                run()
                times[name].append((time.process_time() - start) / n_items * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "benchmark": "ingest",
        "path": shown(path),
        "megabytes": size_of(source.pieces()[0]) / 1e6,
        "molecules": len(smiles),
        "atoms_per_molecule": sum(shard.graphs.n_nodes for shard in shards) / sum(s.graphs.n_graphs for s in shards),
        "repeats": repeats,
        "microseconds": medians,
        "ratio_to_parser": {name: value / medians["RDKit's parser alone"] for name, value in medians.items()},
    }


def scan(source: SmilesSource) -> SourcePlan:
    """Scan all files and cut them."""
    return source.plan([source.scan(piece, NODES_PER_SHARD) for piece in source.pieces()])


def parse_all(smiles: Sequence[str]) -> None:
    """Parse, one molecule alive at a time."""
    for text in smiles:
        Chem.MolFromSmiles(text)


def smiles2graph_of_ogb(smiles: Sequence[str]) -> Callable[[], None]:
    """Make the candidate that the features are those of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.utils.mol import smiles2graph  # noqa: PLC0415

    def run() -> None:
        for text in smiles:
            smiles2graph(text)

    return run


def describe(result: dict[str, Any]) -> str:
    """Write the result as a table."""
    lines = [
        f"{result['molecules']} molecules of {result['path']}, {result['atoms_per_molecule']:.1f} atoms each",
        f"medians of {result['repeats']} runs, CPU time",
        "",
        f"{'':24}{'us a molecule':>14}{'ratio':>8}",
    ]
    lines += [
        f"{name:24}{value:14.2f}{result['ratio_to_parser'][name]:8.2f}"
        for name, value in result["microseconds"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
