"""What the package offers is documented: numpydoc with an example, which pytest runs as a doctest."""

import doctest
import importlib.resources
import inspect

import pytest

import wegl_dask

MODULES = ("geometry", "molecules")
"""Modules whose names are for users as well; of the others, those that the package offers."""


def public_names():
    for name in wegl_dask.__all__:
        if not name.startswith("__"):
            yield getattr(wegl_dask, name)
    for module in map(importlib.import_module, (f"wegl_dask.{name}" for name in MODULES)):
        for name, found in vars(module).items():
            if not name.startswith("_") and getattr(found, "__module__", None) == module.__name__:
                yield found


PUBLIC = {f"{found.__module__}.{found.__qualname__}": found for found in public_names()}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name):
    documentation = inspect.getdoc(PUBLIC[name])
    assert "\nExamples\n--------\n" in documentation
    assert doctest.DocTestParser().get_examples(documentation)


@pytest.mark.parametrize("name", [name for name, found in PUBLIC.items() if inspect.isfunction(found)])
def test_all_parameters_of_a_function_are_documented_or_annotated(name):
    function = PUBLIC[name]
    documentation = inspect.getdoc(function)
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not parameter.empty
        if "\nParameters\n" in documentation:
            assert parameter.name in documentation.partition("\nParameters\n")[2]


def test_there_are_public_names_of_all_modules():
    assert {"WEGL", "GraphBatch", "mean", "graphs_from_smiles"} <= {name.rpartition(".")[2] for name in PUBLIC}


def test_type_checkers_read_the_annotations():
    assert importlib.resources.files("wegl_dask").joinpath("py.typed").is_file()
