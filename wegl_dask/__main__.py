"""Run the command as ``python -m wegl_dask``, where scripts are not on the path."""

from wegl_dask.cli import main

# Worker processes import this module too.
if __name__ == "__main__":
    main(prog_name="wegl-dask")
