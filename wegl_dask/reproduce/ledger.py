"""The steps of a job that are done, kept as JSON, so that a job that was stopped goes on where it was."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from wegl_dask.checksums import fingerprint, sealed, unsealed
from wegl_dask.folders import Folder
from wegl_dask.locks import Lock
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.provenance import provenance, together
from wegl_dask.training.kept_scores import scores_kept
from wegl_dask.training.spreading import Workers

STEP_FOLDER = "steps"


class Ledger:
    """Results of steps by name, each with the settings that it follows from, and when it was computed and with what.

    Parameters
    ----------
    folder : Folder
        Of the job; a step is kept in ``steps/NAME.json``, and the same step with other settings beside it, with a
        fingerprint of these in its name.
    lock : Lock, optional
        Of the folder, held. Scores of a step that is stopped are kept where there is one.
    """

    def __init__(self, folder: Folder, lock: Lock | None = None) -> None:
        self.folder = folder
        self._lock = lock
        self._taken: list[dict[str, Any]] = []

    def fresh(self) -> "Ledger":
        """Open the same steps, none of them taken yet."""
        return Ledger(self.folder, self._lock)

    def how(self) -> dict[str, Any]:
        """Say when, and with which versions, the steps that were taken were computed; there is one at least."""
        return together(self._taken)

    def step(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Any],
        *,
        packages: Sequence[str] = (),
        workers: Workers | None = None,
    ) -> Any:
        """Return the result of a step, which is computed unless it was, with the same settings.

        A file that is damaged or was altered is no step: it is computed again, and takes its place.

        Parameters
        ----------
        name : str
        settings : mapping
            JSON values: everything that the result follows from.
        compute : callable
            Returns JSON values.
        packages : sequence of str
            Whose versions are kept with a result that is computed now.
        workers : Workers, optional
            By which it is computed: the scores of fits that are done when it is stopped are kept, and found by the same
            step with the same settings and versions.
        """
        settings = json.loads(json_bytes(settings))
        key = fingerprint(json.dumps(settings, sort_keys=True))[:12]
        first, own = f"{STEP_FOLDER}/{name}.json", f"{STEP_FOLDER}/{name}--{key}.json"
        steps = {path: self._read(path) for path in (first, own)}
        for step in steps.values():
            if step is not None and step["settings"] == settings:
                break
        else:
            # First: what it cannot say is said before the computing, which may take hours.
            how = provenance(packages)
            with self._keeping(workers, json.dumps([name, settings, how["versions"]], sort_keys=True)):
                step = json.loads(json_bytes({"settings": settings, "result": compute(), "how": how}))
                self.folder.write(first if steps[first] is None else own, json_bytes(sealed(step)))
        self._taken.append(step["how"])
        return step["result"]

    @contextmanager
    def _keeping(self, workers: Workers | None, follows_from: str) -> Iterator[None]:
        if workers is None or self._lock is None:
            yield
            return
        steps = self.folder.subfolder(STEP_FOLDER)
        with scores_kept(steps, self._lock, fingerprint(follows_from)) as kept, workers.keeping(kept):
            yield

    def _read(self, path: str) -> dict[str, Any] | None:
        """Read a step; None where there is none, or what is there is not as it was written."""
        content = self.folder.read_if_there(path)
        try:
            return None if content is None else unsealed(content)
        except ValueError:
            return None
