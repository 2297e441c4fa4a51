"""What is wrong with a JSON file of this package, in one clause."""

from pydantic import ValidationError


def first_problem(error: ValidationError) -> str:
    """Name the first key that is not as it must be, and say how it must be."""
    problem = error.errors()[0]
    key = ".".join(map(str, problem["loc"]))
    return f"{key}: {problem['msg']}" if key else problem["msg"]
