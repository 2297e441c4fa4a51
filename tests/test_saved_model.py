import dataclasses
import json

import numpy as np
import pytest

from wegl_dask import saved_model
from wegl_dask.errors import WeglError
from wegl_dask.saved_model import Model, Origin


@pytest.fixture(scope="module", params=["mutag", "ptc_mr", "enzymes", "molhiv_500"])
def fitted(request, embedded):
    """A model of a real data set, its graphs, and their embeddings by other means than the model's."""
    found = embedded(request.param)
    model = Model(
        schema=found.batch.schema,
        points=found.model,
        reference=found.reference,
        rounding_step=found.step,
        directed=False,
        solver="exact",
        regularization=0.01,
        auto_size=1000,
    )
    return model, found.batch, found.result


def origin_of(model):
    return Origin({**model._job(), "seed": 3}, "fingerprint", n_graphs=12, n_nodes=345, numbering={"classes": ["a"]})


def embeddings(model, batch):
    blocks = list(model.embed(batch))
    return np.concatenate([block.phi for block in blocks]), np.concatenate([block.transport_cost for block in blocks])


def test_a_model_read_back_from_its_files_embeds_alike(fitted):
    model, batch, expected = fitted
    description, arrays = model.to_files(origin_of(model))
    again = Model.from_files(json.loads(json.dumps(description)), arrays)
    phi, cost = embeddings(again, batch)
    assert np.array_equal(phi, expected.phi)
    assert np.array_equal(cost, expected.transport_cost)
    assert Origin.from_description(json.loads(json.dumps(description))) == origin_of(model)


def test_the_embeddings_do_not_depend_on_how_much_is_held_at_a_time(fitted, monkeypatch):
    model, batch, expected = fitted
    monkeypatch.setattr(saved_model, "BLOCK_ENTRIES", 5 * model.reference.size)
    phi, cost = embeddings(model, batch)
    # Sums of a block of another size may come in another order, before the points are rounded.
    np.testing.assert_allclose(cost, expected.transport_cost, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(phi, expected.phi, rtol=1e-5, atol=1e-6 * np.abs(expected.phi).max())


def test_graphs_with_other_features_are_refused(fitted, make_batch):
    model, _, _ = fitted
    with pytest.raises(ValueError, match=r"the model embeds graphs of \[\d.*; these are of "):
        next(model.embed(make_batch([], node_labels=(2, 2, 2))))


def test_a_model_whose_files_contradict_one_another_is_refused(fitted):
    model, _, _ = fitted
    description, arrays = model.to_files(origin_of(model))
    with pytest.raises(WeglError, match=r"the model's array mean has shape \(1,\); \(\d+,\) is needed"):
        Model.from_files(description, {**arrays, "mean": np.zeros(1)})
    for name in ("reference", "mean", "variances"):
        with pytest.raises(WeglError, match=f"the model is not complete: .*{name}"):
            Model.from_files(description, {key: array for key, array in arrays.items() if key != name})
    for key in ("rounding_step", "schema", "columns", "job"):
        with pytest.raises(WeglError, match=f"the model is not complete: .*{key}"):
            Model.from_files({name: value for name, value in description.items() if name != key}, arrays)


def test_a_model_of_a_later_format_is_refused_with_the_version_that_wrote_it(fitted):
    model, _, _ = fitted
    description, arrays = model.to_files(origin_of(model))
    later = {**description, "format_version": 99, "versions": {"wegl_dask": "7.0"}}
    with pytest.raises(WeglError, match=r"of format 99, written by wegl-dask 7\.0; .* install a later version"):
        Model.from_files(later, arrays)


def test_a_model_is_not_written_with_a_job_that_it_does_not_follow(fitted):
    model, _, _ = fitted
    origin = origin_of(dataclasses.replace(model, solver="sinkhorn"))
    with pytest.raises(ValueError, match="sinkhorn"):
        model.to_files(origin)
