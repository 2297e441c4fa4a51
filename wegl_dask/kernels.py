"""The steps that a GPU can take over, diffusion and entropic plans, chosen here by the name of a device."""

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wegl_dask import diffusion, transport
from wegl_dask.transport import TransportEmbeddings

FloatMatrix = npt.NDArray[np.float64]
Device = Literal["cpu", "cuda"]


class Kernels(NamedTuple):
    """Functions that take and return NumPy arrays, wherever they compute.

    Attributes
    ----------
    pooled, accumulated : callable
        See `wegl_dask.diffusion.pooled` and `wegl_dask.diffusion.accumulated`.
    embed_points : callable
        See `wegl_dask.transport.embed_points`.
    """

    pooled: Callable[..., FloatMatrix]
    accumulated: Callable[..., FloatMatrix]
    embed_points: Callable[..., TransportEmbeddings]


def kernels(device: Device) -> Kernels:
    """Choose the kernels of a device.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        NumPy and SciPy; or torch on the GPU: nothing else imports it.

    Raises
    ------
    WeglError
        If there is no such device in this process, or no torch.

    Examples
    --------
    >>> kernels("cpu").embed_points is transport.embed_points
    True
    """
    if device == "cpu":
        return Kernels(diffusion.pooled, diffusion.accumulated, transport.embed_points)
    return _torch_kernels()


@cache
def _torch_kernels() -> Kernels:
    from wegl_dask import torch_kernels  # noqa: PLC0415  it imports torch

    torch_kernels.require_device()
    return Kernels(torch_kernels.pooled, torch_kernels.accumulated, torch_kernels.embed_points)
