"""The command as a process: ``wegl-dask``, and ``python -m wegl_dask`` where scripts are not on the path."""

import contextlib
import os
import signal
import sys

from wegl_dask.stopping import RUN_AGAIN, Stopped, stopped_by_signals


def main() -> None:
    """Run the command, which is stopped by signals from here on, while its modules are imported too."""
    _open_closed_streams()
    # When the command has done what it was told, Ctrl-C is to end the process like the other signals: as an exception
    # it would be dropped by what Python does at its end.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with stopped_by_signals(RUN_AGAIN):
            from wegl_dask import fork_server  # noqa: PLC0415

            fork_server.start_for(sys.argv[1:])
            from wegl_dask.cli import main as command  # noqa: PLC0415  a signal may come before it is imported

            command(prog_name="wegl-dask")
    except Stopped as stopped:
        # Where nobody can be told, the exit code tells.
        with contextlib.suppress(OSError):
            os.write(2, f"\nwegl-dask: {stopped}\n".encode())
        sys.exit(stopped.exit_code)


def _open_closed_streams() -> None:
    """Open what is closed of standard input, output and error to nothing, lest the next file takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, f"__{name}__") is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            # Where it was the first that is free, it is not a copy, and processes that are started would not have it.
            os.set_inheritable(number, True)
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, f"__{name}__", stream)
            setattr(sys, name, stream)


# Worker processes import this module too.
if __name__ == "__main__":
    main()
