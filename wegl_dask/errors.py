"""The errors a user is meant to read: one clear line, and the exit code of the command that ends with it."""

MORE_MEMORY = "give workers more memory (cluster.memory_limit, on Slurm cluster.memory)"
"""Advice that several messages have in common."""


class WeglError(Exception):
    """A failure that is the input's, the machine's or the job file's, and not a bug.

    The command line prints the message as one line and leaves with `exit_code`. The message says what was found and
    where, what is allowed, and what to do. Where that takes a table too, `table` is it, to be shown below.

    Examples
    --------
    >>> from wegl_dask import WEGL, WeglError
    >>> try:
    ...     WEGL.load("runs/not-there")
    ... except WeglError as error:
    ...     print(error.exit_code)
    1
    """

    exit_code = 1
    table = ""


class JobFileError(WeglError):
    """The job file or the command's arguments cannot be used as they are."""

    exit_code = 2


class SettingsError(ValueError):
    """The graphs do not allow what the settings ask for, or not by so much.

    The numerical parts raise it, in the names of the job file's keys. A job makes a `JobFileError` of it; the estimator,
    which is given parameters and no file, puts their names in the place of the keys'.
    """


class SourceError(WeglError):
    """The input as a whole cannot be read: a missing file, a broken archive, files that contradict one another."""


class OtherRunError(WeglError):
    """The run folder holds something else than the run that is to go on there.

    The message is what was found, and after it `advice`; a command that has other options gives its own with `found`.
    """

    advice = ""

    @property
    def found(self) -> str:
        """What was found, without advice."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.found}. {self.advice}"


class OtherJobError(OtherRunError, JobFileError):
    """It holds another job, the same job's run by other numerics, or a damaged one."""

    advice = "Choose another output.path, or clear the folder with --overwrite"


class OtherInputError(OtherRunError, SourceError):
    """It holds the same job's run of another input."""

    advice = (
        "Run into another folder, or with --overwrite to start anew; rows that a finished run does not have yet are added "
        "by  wegl-dask append"
    )


class MissingDependencyError(WeglError):
    """An optional package is needed and not installed; the message holds the line that installs it."""

    @classmethod
    def for_extra(cls, package: str, extra: str) -> "MissingDependencyError":
        """Name the package that is missing and the extra that brings it."""
        return cls(f"{package} is needed here and is not installed: run  pip install 'wegl-dask[{extra}]'")


class TooManyRejectedError(WeglError):
    """More rows were rejected than the job file allows."""

    exit_code = 3


def lost_connection(step: str) -> WeglError:
    """Make the error that says that there is no scheduler any more, of which Dask says so by several kinds of OSError."""
    return WeglError(
        f"{step}: the connection to the scheduler was lost. What was finished stays valid; run the same job again when the "
        "scheduler is there"
    )
