"""The command as a process: ``wegl-dask``, and ``python -m wegl_dask`` where scripts are not on the path."""

import contextlib
import os
import signal
import sys

from wegl_dask.stopping import RUN_AGAIN, Stopped, stopped_by_signals


def main() -> None:
    """Run the command, which is stopped by signals from here on, while its modules are imported too."""
    # When the command has done what it was told, Ctrl-C is to end the process like the other signals: as an exception
    # it would be dropped by what Python does at its end.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with stopped_by_signals(RUN_AGAIN):
            from wegl_dask.cli import main as command  # noqa: PLC0415  a signal may come before it is imported

            command(prog_name="wegl-dask")
    except Stopped as stopped:
        # Where nobody can be told, the exit code tells.
        with contextlib.suppress(OSError):
            os.write(2, f"\nwegl-dask: {stopped}\n".encode())
        sys.exit(stopped.exit_code)


# Worker processes import this module too.
if __name__ == "__main__":
    main()
