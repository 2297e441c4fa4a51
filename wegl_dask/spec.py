"""The job file: every key, its type, its default and what it means.

The descriptions in this module are the documentation: ``wegl-dask run --help`` and the README's table are made of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, LiteralString, Self, get_args

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from wegl_dask.errors import JobFileError
from wegl_dask.job_checks import MODEL_KEYS, contradictions
from wegl_dask.job_errors import explain
from wegl_dask.job_keys import DocumentedKey, table_keys
from wegl_dask.toml import read_toml
from wegl_dask.training.names import MetricName, ModelName, ProtocolName

NodeFeature = Literal["labels", "degrees", "attributes", "atom_embedding"]


def _without(characters: str, rule: LiteralString) -> AfterValidator:
    def check(text: str) -> str:
        if set(characters) & set(text):
            raise PydanticCustomError("forbidden_character", rule)
        return text

    return AfterValidator(check)


Text = Annotated[str, Field(min_length=1), _without("\0", "text without NUL")]
DataSetName = Annotated[Text, _without("/\\", "a name without slashes")]
Character = Annotated[str, Field(min_length=1, max_length=1)]


LARGEST_SEED = 2**32 - 1
"""That NumPy and scikit-learn take."""


class Table(BaseModel):
    """A table of the job file: unknown keys are errors, values are not changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SourceTable(Table):
    """Keys that every kind of source has."""

    nodes_per_shard: int | None = Field(
        None, ge=1, description="Nodes after which a shard is cut; chosen from the size of the input if not set."
    )
    max_nodes: int | None = Field(None, ge=1, description="Graphs with more nodes are rejected; no limit if not set.")
    on_error: Literal["reject", "fail"] = Field(
        "reject", description="What a graph that cannot be embedded does: it is rejected, or it stops the job."
    )
    max_rejected_fraction: float = Field(
        0.5, ge=0, le=1, description="The job stops with exit code 3 when more than this part of the rows is rejected."
    )


class TudTable(SourceTable):
    """A data set of the TU collection, as raw text files or the published zip."""

    kind: Literal["tud"]
    root: Text = Field(description="Folder that holds NAME/raw/NAME_A.txt or NAME.zip; any fsspec URL.")
    name: DataSetName = Field(description='Name of the data set, for example "MUTAG".')
    download: bool = Field(True, description="Download the published zip into `root` when the data set is not there.")


class OgbTable(SourceTable):
    """A graph property set of the Open Graph Benchmark, from its raw files."""

    kind: Literal["ogb"]
    root: Text = Field(description="Folder that holds the data set's folder, such as ogbg_molhiv; any fsspec URL.")
    name: DataSetName = Field(description='Name of the data set, for example "ogbg-molhiv".')
    split: Text | None = Field(None, description="Split to read, a folder of split/; the only one there is if not set.")
    download: bool = Field(True, description="Download the published zip into `root` when the data set is not there.")


class LookupTable(Table):
    """A second text file with more columns, matched to the rows by the value of one column. It is held in memory."""

    path: Text = Field(description="The file: a path, an fsspec URL or package://NAME/PATH.")
    on: Text = Field("smiles", description="Column that both files have; its text must be equal for a match.")
    columns: list[Text] | None = Field(None, description="Column names of a file without a header line.")
    delimiter: Character = Field(",", description="Character between two columns.")
    comment: Character | None = Field(None, description="Lines that start with this character are passed over.")


class FileTable(SourceTable):
    """Keys of the sources that read a file, a glob or a folder."""

    path: Text | Annotated[list[Text], Field(min_length=1)] = Field(
        description="A file, a glob, a folder, or a list of them: paths, fsspec URLs or package://NAME/PATH."
    )


class MoleculeTable(FileTable):
    """Keys of the sources that featurise molecules."""

    id_column: Text | None = Field(
        None,
        description="Column (SDF: property) that holds the id. If not set: the second column of .smi, .smiles and .txt files, else the row "
        "number.",
    )
    targets: list[Text] = Field([], description="Columns (SDF: properties) that hold the labels, in order.")
    split_column: Text | None = Field(None, description="Column (SDF: property) that names the split of the row.")
    extra_columns: list[Text] = Field([], description="Columns (SDF: properties) passed through to the output as text.")
    largest_fragment: bool = Field(False, description="Keep the largest fragment of a salt or mixture alone.")


class SmilesTable(MoleculeTable):
    """Molecules as SMILES, in .csv, .tsv, .smi, .smiles, .txt or .parquet; all but the last also as .gz, .bz2, .xz or .zst."""

    kind: Literal["smiles"]
    smiles_column: Text = Field("smiles", description="Column that holds the SMILES.")
    columns: list[Text] | None = Field(
        None,
        description='Column names of a text file without a header; for .smi, .smiles and .txt ["smiles", "id"] if not set.',
    )
    delimiter: Character | None = Field(
        None, description="Character between two columns; by the file's ending if not set."
    )
    encoding: Text = Field("utf-8", description="Encoding of the text files; a byte order mark is allowed.")
    lookup: LookupTable | None = Field(
        None, description="A second file with more columns, see the table source.lookup."
    )


class SdfTable(MoleculeTable):
    """Molecules in SDF files (.sdf, .sd, also compressed)."""

    kind: Literal["sdf"]


class PygTable(FileTable):
    """A list of torch_geometric Data objects, or a dataset's processed file, saved with torch.save."""

    kind: Literal["pyg"]
    trust: bool = Field(
        False, description="Loading such a file runs code that it contains: set to true if you trust it."
    )


class NetworkxTable(FileTable):
    """Graphs in GraphML, GML or node-link JSON files, one graph a file."""

    kind: Literal["networkx"]
    label: Text | None = Field(None, description="Graph attribute that holds the label.")
    split: Text | None = Field(None, description="Graph attribute that names the split.")
    node_labels: list[Text] = Field([], description="Node attributes read as categories.")
    node_attributes: list[Text] = Field([], description="Node attributes read as numbers.")
    edge_labels: list[Text] = Field([], description="Edge attributes read as categories.")
    edge_attributes: list[Text] = Field([], description="Edge attributes read as numbers.")


class GraphParquetTable(FileTable):
    """Graph shards as this package writes them: the folder graphs/ of a run."""

    kind: Literal["graph_parquet"]


AnySourceTable = Annotated[
    TudTable | OgbTable | SmilesTable | SdfTable | PygTable | NetworkxTable | GraphParquetTable,
    Field(discriminator="kind"),
]


class ModelTable(Table):
    """A fitted model to embed with."""

    path: Text | None = Field(
        None,
        description="Embed with the model in this folder, of a run or as WEGL.save wrote it, instead of fitting one. Then "
        "there is no seed, and none of the tables nodes, edges, diffusion, projection, reference and transport: they "
        "are the model's.",
    )
    sha256: Text | None = Field(
        None, description="SHA-256 of its model.json; filled in by the run, which is refused where it is another."
    )


class NodesTable(Table):
    """Initial node features."""

    features: list[NodeFeature] | None = Field(
        None,
        min_length=1,
        description="Features of a node, concatenated in this order. If not set: the atom embedding for molecules, else "
        "node labels, else attributes, else degrees.",
    )
    degree_clip: int = Field(500, ge=0, description="Degrees above this count as this.")
    atom_embedding_width: int = Field(300, ge=1, description="Width F of the random atom embedding.")
    virtual_node: bool = Field(False, description="Add a virtual node to every graph.")


class EdgesTable(Table):
    """How edges are read and weighted."""

    features: Literal["none", "labels", "attributes", "weight"] | None = Field(
        None,
        description="What an edge weighs: 1; its labels, one-hot; its attributes, non-negative, a channel each; its only "
        "attribute as a scalar weight. If not set: labels where there are labels, else none.",
    )
    direction: Literal["undirected", "directed"] = Field(
        "undirected", description="An edge joins both ways, or makes its source a neighbour of its target alone."
    )


MOST_LAYERS = 10_000
"""A slip of the keyboard would run for years."""


class DiffusionTable(Table):
    """Propagation of the node features."""

    layers: int = Field(4, ge=0, le=MOST_LAYERS, description="Number of layers L.")
    pooling: Literal["concat", "average", "final"] = Field(
        "final", description="Local pooling of the L + 1 features of a node."
    )


class ProjectionTable(Table):
    """Standardisation and principal components of the node embeddings."""

    standardize: bool = Field(True, description="Subtract the mean and divide by the standard deviation.")
    components: int | None = Field(None, ge=1, description="Number of principal components kept; no PCA if not set.")
    method: Literal["exact", "randomized"] = Field(
        "exact",
        description="How they are found: from the products of all pairs of columns, of which there may be 4,096; or "
        "approximately, from products with random directions, for any number of columns. The leading ones are accurate "
        "where variances fall off.",
    )
    fit_on: Literal["all", "train"] = Field(
        "all", description='Graphs that the statistics, N and the reference are taken from; "train" needs a split.'
    )


class ReferenceTable(Table):
    """The reference point set."""

    kind: Literal["kmeans", "normal", "barycenter", "sample", "origin"] = Field(
        "kmeans",
        description="k-means of the node embeddings, a normal distribution, a Wasserstein barycenter, or nodes; or the "
        "origin alone, which makes the embedding the average of the points: global average pooling.",
    )
    points: int | None = Field(
        None,
        ge=1,
        description="Number of points N; the mean number of points a graph, rounded down, if not set. The origin is one.",
    )
    max_nodes: int | None = Field(
        None,
        ge=1,
        description="Node embeddings that the reference is computed from, at most; 10,000 for each of its points, and "
        "1,000,000 in all, if not set. A barycenter takes all of its graphs.",
    )
    epochs: int = Field(5, ge=1, description="k-means: passes over the node embeddings.")
    graphs: int = Field(200, ge=2, description="barycenter: number of graphs that it is the mean of.")


class TransportTable(Table):
    """The transport problem of each graph."""

    solver: Literal["exact", "sinkhorn", "auto"] = Field(
        "exact", description="Linear program; entropic in the log domain; or entropic above auto_size entries."
    )
    regularization: float = Field(
        0.01,
        gt=0,
        description="Entropic regularisation, as a fraction of the graph's largest cost. The column regularisation of the "
        "output has it in units of the cost.",
    )
    auto_size: int = Field(
        4_000_000,
        ge=1,
        description='Points times N above which solver = "auto" takes the entropic solver. A graph of more whose entropic plan '
        "does not converge is rejected; an exact plan takes the place of others.",
    )


class OutputTable(Table):
    """The run folder."""

    path: Text = Field(description="The run folder: a path or any fsspec URL.")
    keep_graphs: bool = Field(True, description="Keep the graph shards when the run is done.")
    dtype: Literal["float32", "float16"] = Field("float32", description="Type of the embedding's entries.")
    layout: Literal["list", "wide"] = Field(
        "list", description="The embedding as one column of fixed-size lists, or one column a dimension."
    )
    performance_report: bool = Field(
        False,
        description="Write Dask's performance report to the run folder; needs bokeh. The workers' profile is in it where "
        "cluster.dashboard_address is set.",
    )


class ClusterTable(Table):
    """Where the work is done."""

    kind: Literal["local", "scheduler", "slurm"] = Field(
        "local", description="Processes on this machine, an existing Dask scheduler, or jobs of Slurm."
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu",
        description="What workers diffuse and find entropic plans on: their processor, or a GPU by torch (extra gpu), with "
        "the same result to float32 tolerance. Exact plans are found on the processor.",
    )
    workers: int | None = Field(None, ge=1, description="local: number of worker processes; one a core if not set.")
    memory_limit: Text | None = Field(
        None, description='local: memory of a worker, such as "800MB"; the machine\'s, divided evenly, if not set.'
    )
    local_directory: Text | None = Field(
        None, description="local, slurm: folder for spilling; the system's temporary folder if not set."
    )
    dashboard_address: Text | None = Field(
        None,
        description='local, slurm: where Dask\'s dashboard listens, such as "127.0.0.1:8787", or "127.0.0.1:0" for any free '
        "port; there is none if not set. With it the profile of the workers is taken.",
    )
    address: Text | None = Field(None, description="scheduler: address such as tls://host:8786.")
    insecure: bool = Field(
        False,
        description="scheduler, slurm: connect to other machines without encryption. Whoever is on their network can then "
        "run code on the workers.",
    )
    tls_ca_file: Text | None = Field(
        None,
        description="scheduler, slurm: PEM file of the authority that has signed the certificates of the cluster; Dask's "
        "own setting if not set, for slurm temporary certificates.",
    )
    tls_cert: Text | None = Field(None, description="scheduler, slurm: PEM file of this side's certificate.")
    tls_key: Text | None = Field(
        None, description="scheduler, slurm: PEM file of its key; in the file of the certificate if not set."
    )
    upload: Text | None = Field(
        None, description="scheduler: wheel of wegl-dask that scheduler and workers are given where they have none."
    )
    queue: Text | None = Field(None, description="slurm: partition; Slurm's default if not set.")
    account: Text | None = Field(None, description="slurm: account that the jobs are charged to.")
    jobs: int = Field(1, ge=1, description="slurm: number of jobs at a time.")
    cores: int = Field(1, ge=1, description="slurm: cores of a job, with a worker process on each.")
    memory: Text | None = Field(None, description='slurm: memory of a job, such as "16GB"; 2 GB a core if not set.')
    walltime: Text = Field(
        "01:00:00", description="slurm: time limit of a job, as sbatch takes it. Its workers end before, others follow."
    )
    job_extra: list[Text] = Field([], description='slurm: further options of sbatch, such as ["--qos=long"].')
    job_prologue: list[Text] = Field(
        [], description='slurm: lines of shell before the workers start, such as ["module load python"].'
    )
    job_directory: Text = Field(
        "wegl-slurm",
        description="slurm: folder that all nodes see, for what the jobs write and for temporary certificates.",
    )
    interface: Text | None = Field(
        None, description="slurm: network interface that this machine and the nodes reach one another by, such as ib0."
    )
    retries: int = Field(2, ge=0, description="Times a shard is tried again after an exception.")
    allowed_failures: int = Field(
        3, ge=0, description="local, slurm: workers that may die on a shard before it counts as failed."
    )

    @property
    def slurm_workers(self) -> int:
        """Worker processes of all of Slurm's jobs; 0 where there are none."""
        return self.jobs * self.cores if self.kind == "slurm" else 0


class TrainTable(Table):
    """What ``wegl-dask train`` makes of the embeddings."""

    model: ModelName = Field("random-forest", description="Model that is trained.")
    protocol: ProtocolName | None = Field(
        None,
        description="Train, choose and test on the parts of the data's split; or cross-validation. If not set: the split "
        "where there is one.",
    )
    metric: MetricName | None = Field(
        None,
        description="What candidates are compared by. If not set: roc-auc for two classes on a split, accuracy for other "
        "classes and in cross-validation, rmse for targets.",
    )
    seeds: int = Field(
        10, ge=1, le=10_000, description="split: number of seeds that the chosen candidate is fitted with."
    )
    folds: int = Field(10, ge=2, description="cv: number of folds.")
    time_budget: float = Field(600.0, gt=0, description="automl: seconds of one search.")


class JobSpec(Table):
    """A whole job file."""

    name: Text = Field("wegl", description="Name of the job, for people.")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="Seed of everything random in the job.")
    task: Literal["auto", "none", "classification", "regression", "multitask"] = Field(
        "auto", description="What the labels are; found from the data if not set."
    )
    source: AnySourceTable
    model: ModelTable = ModelTable()
    nodes: NodesTable = NodesTable()
    edges: EdgesTable = EdgesTable()
    diffusion: DiffusionTable = DiffusionTable()
    projection: ProjectionTable = ProjectionTable()
    reference: ReferenceTable = ReferenceTable()
    transport: TransportTable = TransportTable()
    output: OutputTable
    cluster: ClusterTable = ClusterTable()
    train: TrainTable = TrainTable()

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        found = list(contradictions(self))
        if found:
            raise ValueError("; ".join(found))
        return self

    @classmethod
    def from_toml(cls, text: str, overrides: Sequence[str] = (), *, where: str = "job file") -> "JobSpec":
        """Read a job file and apply ``a.b=value`` overrides.

        Parameters
        ----------
        text : str
            The TOML text.
        overrides : sequence of str
            Assignments such as ``"transport.solver=sinkhorn"``; the value is TOML, or else plain text.
        where : str
            What to call the text in messages.

        Raises
        ------
        JobFileError
            If it is not TOML, or a key or value is not allowed; the message names the key.
        """
        try:
            values = read_toml(text)
        except ValueError as error:
            raise JobFileError(f"{where} is not TOML: {error}") from error
        for override in overrides:
            _assign(values, override)
        return cls.from_values(values, where=where)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, where: str = "job file") -> "JobSpec":
        """Check a job given as nested mappings; see `from_toml` for the errors."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise JobFileError(f"{where}: {'; '.join(explain(error, cls))}") from error

    def to_toml(self) -> str:
        """Write the job out with all defaults filled in; keys without a value are left out, as is what the model says."""
        given = set(MODEL_KEYS) if self.model.path is not None else set()
        tables = self.model_dump(exclude_none=True, exclude=given)
        return tomli_w.dumps({key: value for key, value in tables.items() if value != {}})


def source_kinds() -> tuple[str, ...]:
    """Names allowed for ``source.kind``."""
    tables = get_args(get_args(AnySourceTable)[0])
    return tuple(get_args(table.model_fields["kind"].annotation)[0] for table in tables)


def documented_keys() -> list[DocumentedKey]:
    """List every key of the job file, in the order of the file."""
    return table_keys(JobSpec)


def _assign(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise JobFileError(f"--set {override!r} is not KEY=VALUE; write for example --set transport.solver=sinkhorn")
    try:
        value = read_toml(f"value = {text}")["value"]
    except ValueError:
        value = text.strip()
    *parents, leaf = key.strip().split(".")
    table = values
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise JobFileError(f"--set {override!r}: {parent} is a value in the job file, not a table")
    table[leaf] = value


def read_job(path: str | Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job file from disk; see `JobSpec.from_toml`."""
    try:
        # A byte order mark is what some editors begin a file with.
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise JobFileError(f"cannot read the job file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobFileError(f"the job file {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return JobSpec.from_toml(text, overrides, where=str(path))
