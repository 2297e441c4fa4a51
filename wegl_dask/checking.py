"""What a job would read and write, found out without computing anything: ``wegl-dask check``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask.system import CPU_COUNT

from wegl_dask.claims import examine, require_writable
from wegl_dask.errors import SourceError
from wegl_dask.features import default_edge_features, default_features
from wegl_dask.given_model import GivenModel
from wegl_dask.ingest import check_columns, check_plan, refuse_output_among_input, shard_size
from wegl_dask.kernels import kernels
from wegl_dask.local_client import check_dashboard, memory_of_a_worker
from wegl_dask.sources import open_source, require_reading_packages
from wegl_dask.sources.base import Source, SourcePlan
from wegl_dask.sources.smiles import Counts, SmilesSource
from wegl_dask.sources.streams import open_stream
from wegl_dask.spec import FileTable, JobSpec
from wegl_dask.storage import RunFolder

SCANNED_NODES = 2_000_000
"""A source of more nodes than this, by a guess, is opened and not read through."""

OPENED_PIECES = 100
"""Files that are opened, of those that are not read through."""


@dataclass(frozen=True)
class Finding:
    """What a job would read and write.

    Attributes
    ----------
    pieces : sequence of str
        The files or data sets.
    estimated_nodes : int
        By the lengths of SMILES that were read through, else by sizes.
    known_labels : mapping of str to int
        Rows that have a label, by target, of SMILES that were read through.
    refused_labels : int
        Rows of those that will be rejected for a label,
    refused_why : str
        and where the first of them is, and why.
    opened : int
        Pieces that were opened.
    plan : SourcePlan or None
        How the source is cut; None where it is too large to be read through here.
    node_features, edge_features : str
        What the job takes, or that the model says so; "" where that depends on a source that was not read through.
    folder : str
        Where the output goes.
    folder_state : str
        What is there already.
    """

    pieces: Sequence[str]
    estimated_nodes: int
    known_labels: Mapping[str, int]
    refused_labels: int
    refused_why: str
    opened: int
    plan: SourcePlan | None
    node_features: str
    edge_features: str
    folder: str
    folder_state: str


def check_job(spec: JobSpec) -> Finding:
    """Look at the source and the output folder of a job.

    A data set that may be downloaded and is not there is downloaded, as the run would. A source of moderate size is
    read through as the first stage of a run does; of a larger one the files are opened, and the columns that the job
    names are looked for.

    Raises
    ------
    WeglError
        If the run would be refused: a file cannot be read, a column or a feature is not there, a package is missing,
        the model cannot be used, the output folder holds something else.
    """
    spec, given = GivenModel.of(spec)
    refuse_output_among_input(spec)
    source = open_source(spec.source, spec.task)
    require_reading_packages(spec.source)
    pieces, nodes = source.pieces(), source.estimated_nodes()
    counts = Counts(nodes, {}, 0, "")
    if nodes <= SCANNED_NODES:
        plan = _scan(spec, source, pieces, nodes, given)
        node_features = ", ".join(spec.nodes.features or default_features(plan.schema))
        edge_features: str = spec.edges.features or default_edge_features(plan.schema)
        opened = len(pieces)
        if isinstance(source, SmilesSource):
            counts = source.count(plan)
    else:
        plan = None
        opened = _open(source, spec, pieces)
        node_features, edge_features = ", ".join(spec.nodes.features or ()), spec.edges.features or ""
    if given is not None:
        node_features = edge_features = f"those of the model in {given.path}"
    if spec.cluster.kind == "local":
        # The workers will be on this machine: what they lack is missing here.
        kernels(spec.cluster.device)
        memory_of_a_worker(spec.cluster.memory_limit, spec.cluster.workers or CPU_COUNT)
    if spec.cluster.kind != "scheduler":
        check_dashboard(spec.cluster)
    # Last: what is wrong with the source has to be put right in any case, and may be why the job is another one.
    folder_state = _folder_state(spec)
    folder = RunFolder(spec.output.path).location()
    return Finding(pieces, *counts, opened, plan, node_features, edge_features, folder, folder_state)


def _scan(spec: JobSpec, source: Source, pieces: Sequence[str], nodes: int, given: GivenModel | None) -> SourcePlan:
    nodes_per_shard = spec.source.nodes_per_shard or shard_size(nodes)
    plan = source.plan([source.scan(piece, nodes_per_shard) for piece in pieces])
    if not plan.units:
        raise SourceError(f"the source holds no graphs: {', '.join(pieces[:3])}")
    check_columns(spec, plan, given)
    if given is not None:
        return plan.numbered_as(given.schema, given.origin.numbering)
    check_plan(spec, plan)
    return plan


def _open(source: Source, spec: JobSpec, pieces: Sequence[str]) -> int:
    """Open files and look at their beginning: how many. Pieces that are no files have been found, and that is all."""
    if not isinstance(spec.source, FileTable) or spec.source.kind == "networkx":
        return 0
    for piece in pieces[:OPENED_PIECES]:
        if isinstance(source, SmilesSource):
            source.check(piece)
        else:
            with open_stream(piece) as stream:
                stream.read(1)
    return min(len(pieces), OPENED_PIECES)


def _folder_state(spec: JobSpec) -> str:
    folder = RunFolder(spec.output.path)
    require_writable(folder)
    job_toml, _ = examine(folder, spec.to_toml())
    if job_toml is None:
        return "a new folder"
    return "a finished run of this job" if folder.has_succeeded() else "a run of this job that has not finished"
