"""What the workers of a cluster compute on: whether the device that a job asks for is there."""

from distributed import Client

from wegl_dask.errors import WeglError
from wegl_dask.kernels import Device, kernels


def require_device(client: Client, device: Device) -> None:
    """Look for a device on all workers; a worker that joins later says so itself, by the task that fails on it.

    Raises
    ------
    WeglError
        If a worker lacks it, or the package that it needs.
    """
    if device == "cpu":
        return
    problems = client.run(_problem, device)
    lacking = {worker: problem for worker, problem in problems.items() if problem is not None}
    if lacking:
        worker, problem = next(iter(lacking.items()))
        raise WeglError(
            f'cluster.device = "{device}", and {len(lacking)} of {len(problems)} workers cannot use it; {worker}: {problem}'
        )


def _problem(device: Device) -> str | None:
    try:
        kernels(device)
    except WeglError as error:
        return str(error)
    return None
