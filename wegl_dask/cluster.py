"""A Dask client from the job file's table ``[cluster]``: processes on this machine, an existing scheduler, or Slurm."""

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from wegl_dask.local_client import has_dashboard, local_client
from wegl_dask.scheduler_client import scheduler_client
from wegl_dask.slurm_client import slurm_client
from wegl_dask.spec import ClusterTable

_CLIENTS = {"local": local_client, "scheduler": scheduler_client, "slurm": slurm_client}


@contextmanager
def open_client(table: ClusterTable) -> Iterator[Client]:
    """Open a client on the cluster that the table describes, and close it again.

    A local cluster lives as long as the client. When the block ends, however it ends, its workers are killed with what
    they were doing; it leaves no process and no file behind. Jobs of Slurm are cancelled. An existing scheduler is left
    running.

    Parameters
    ----------
    table : ClusterTable

    Yields
    ------
    distributed.Client

    Raises
    ------
    JobFileError
        If a key of the table cannot be used on this machine, or asks for what is not safe.
    WeglError
        If workers do not start, the scheduler cannot be reached, has no workers, or has workers with other versions
        of the packages that matter.

    Notes
    -----
    Workers of a local cluster import the script that is running, as everything does that Python's multiprocessing
    starts; a script must do its work under ``if __name__ == "__main__":``.
    """
    with _CLIENTS[table.kind](table) as client:
        yield client


def dashboard_link(table: ClusterTable, client: Client) -> str | None:
    """Address of the dashboard for a browser; None where there is none."""
    if table.kind != "scheduler" and not has_dashboard(table):
        return None
    link: str | None = client.dashboard_link
    return link
