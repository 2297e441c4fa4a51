"""The steps of a job that are done, kept as JSON, so that a job that was stopped goes on where it was."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes

STEP_FOLDER = "steps"


class Ledger:
    """Results of steps by name, each with the settings that it follows from.

    Parameters
    ----------
    folder : Folder
        Of the job; steps are kept in ``steps/NAME.json``.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def step(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Return the result of a step, which is computed unless it was, with the same settings.

        Parameters
        ----------
        name : str
        settings : mapping
            JSON values: everything that the result follows from.
        compute : callable
            Returns JSON values.
        """
        path = f"{STEP_FOLDER}/{name}.json"
        settings = json.loads(json_bytes(settings))
        kept = self._folder.read_if_there(path)
        if kept is not None:
            step = json.loads(kept)
            if step["settings"] == settings:
                return step["result"]
        result = json.loads(json_bytes({"settings": settings, "result": compute()}))["result"]
        self._folder.write(path, json_bytes({"settings": settings, "result": result}))
        return result
