"""Imports, as it is imported, what a local worker needs: the process that workers are forks of does so."""

import gc
import os
import sys
from importlib import import_module

from wegl_dask.imports import Refusal, uncollected
from wegl_dask.worker_environment import PRELOADED

# What cannot be imported here cannot be in the command either, which says so.
sys.excepthook = lambda *_: None
_parent = os.getppid()
with uncollected():
    for _module in ("distributed.nanny", *PRELOADED):
        import_module(_module)
        if os.getppid() != _parent:
            # The command has ended before it had any worker.
            sys.exit()
    # Nor need the forks look at them.
    gc.freeze()
sys.excepthook = sys.__excepthook__

# k-means needs dask.array, which imports it and Numba, a seventh of a second, in case that somebody has such arrays.
sys.meta_path.insert(0, Refusal("sparse"))
