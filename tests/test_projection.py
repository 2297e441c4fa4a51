import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from wegl_dask.projection import Moments, Projection, fit_projection


def fit(vectors, *, standardize=True, components=None, scatter=None, fewer=False):
    """Fit to explicit vectors, every column of which is covered."""
    moments = Moments.of(vectors, scatter=components is not None if scatter is None else scatter)
    return fit_projection(
        moments,
        encoder=None,
        columns=None,
        n_columns=vectors.shape[1],
        repeats=1,
        standardize=standardize,
        components=components,
        fewer=fewer,
    )


def project(projection, vectors):
    scaled = (vectors - projection.mean) / projection.scale
    return scaled if projection.components is None else scaled @ projection.components.T


@pytest.fixture(scope="module")
def correlated():
    """400 vectors of 12 columns: correlated, of very different scales, with a large common offset."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((400, 12)) @ rng.standard_normal((12, 12))) * 10.0 ** rng.integers(-1, 3, 12) + 5


@pytest.mark.parametrize("scatter", [False, True])
def test_moments_are_those_of_numpy(correlated, scatter):
    moments = Moments.of(correlated, scatter=scatter)
    covariance = np.cov(correlated, rowvar=False, ddof=0) * 400
    assert (moments.count, moments.has_scatter) == (400, scatter)
    np.testing.assert_allclose(moments.mean, correlated.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(moments.deviations, covariance if scatter else np.diagonal(covariance), rtol=1e-9)


@settings(max_examples=50)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.floats(-1e3, 1e3)),
    st.data(),
    st.booleans(),
)
def test_moments_do_not_depend_on_the_cut_or_on_the_order_of_merging(vectors, data, scatter):
    n = len(vectors)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    pieces = [piece for piece in np.split(vectors, cuts) if len(piece)]
    parts = [Moments.of(piece, scatter=scatter) for piece in pieces]
    parts.append(Moments.none(vectors.shape[1], scatter=scatter))
    parts = data.draw(st.permutations(parts))
    while len(parts) > 1:
        place = data.draw(st.integers(0, len(parts) - 2))
        parts[place : place + 2] = [parts[place].merge(parts[place + 1])]
    (merged,), whole = parts, Moments.of(vectors, scatter=scatter)
    assert merged.count == n
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(merged.deviations, whole.deviations, rtol=1e-10, atol=1e-7)


def test_merging_loses_nothing_to_a_large_offset():
    rng = np.random.default_rng(1)
    vectors = 1e8 + rng.standard_normal((5000, 3))
    merged = Moments.none(3, scatter=True)
    for piece in np.array_split(vectors, 50):
        merged = merged.merge(Moments.of(piece, scatter=True))
    exact = (vectors - 1e8) - (vectors - 1e8).mean(axis=0)
    np.testing.assert_allclose(merged.deviations, exact.T @ exact, rtol=1e-7, atol=1e-3)


def with_hard_columns(vectors):
    """Append columns without variance, with hardly any, and with an offset that dwarfs it."""
    n = len(vectors)
    noise = np.random.default_rng(2).standard_normal((n, 3))
    return np.column_stack(
        [
            vectors,
            np.zeros(n),
            np.full(n, 0.1),
            np.full(n, 123456789.1),
            np.full(n, -1e-300),
            1e8 + noise[:, 0],
            1e-9 * noise[:, 1],
            1e6 + 1e-11 * noise[:, 2],
        ]
    )


def test_standardisation_is_scikit_learns(correlated):
    vectors = with_hard_columns(correlated)
    projection, expected = fit(vectors), StandardScaler().fit(vectors)
    assert projection.components is None
    assert projection.dimension == vectors.shape[1]
    np.testing.assert_allclose(projection.mean, expected.mean_, rtol=1e-12)
    np.testing.assert_allclose(projection.scale, expected.scale_, rtol=1e-9)
    # Of the columns without variance, and of the one whose variance is no more than rounding error.
    assert (projection.scale == 1).nonzero()[0].tolist() == [12, 13, 14, 15, 18]
    np.testing.assert_allclose(project(projection, vectors), expected.transform(vectors), rtol=1e-7, atol=1e-7)


def test_standardisation_from_merged_moments_finds_the_constant_columns(correlated):
    vectors = with_hard_columns(correlated)
    moments = Moments.none(vectors.shape[1], scatter=False)
    for piece in np.array_split(vectors, 37):
        moments = moments.merge(Moments.of(piece, scatter=False))
    projection = fit_projection(
        moments, encoder=None, columns=None, n_columns=19, repeats=1, standardize=True, components=None
    )
    np.testing.assert_allclose(projection.scale, StandardScaler().fit(vectors).scale_, rtol=1e-9)


def test_without_standardisation_and_components_points_are_the_node_embeddings(correlated):
    projection = fit(correlated, standardize=False)
    np.testing.assert_array_equal(project(projection, correlated), correlated)
    np.testing.assert_allclose(projection.variances, correlated.var(axis=0), rtol=1e-10)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("components", [1, 5, 12])
def test_principal_components_are_scikit_learns(correlated, standardize, components):
    projection = fit(correlated, standardize=standardize, components=components)
    scaled = StandardScaler().fit_transform(correlated) if standardize else correlated
    expected = PCA(components, svd_solver="full").fit(scaled)
    n = len(correlated)
    # scikit-learn's variances have ddof 1.
    variances = expected.explained_variance_ * (n - 1) / n
    strong = variances > 1e-6 * variances[0]
    np.testing.assert_allclose(projection.variances[strong], variances[strong], rtol=1e-9)
    np.testing.assert_allclose(projection.components[strong], expected.components_[strong], atol=1e-8)
    np.testing.assert_allclose(projection.components @ projection.components.T, np.eye(components), atol=1e-12)
    assert projection.total_variance == pytest.approx(scaled.var(axis=0).sum(), rel=1e-10)
    explained = expected.explained_variance_ratio_
    np.testing.assert_allclose((projection.variances / projection.total_variance)[strong], explained[strong], rtol=1e-9)
    points = project(projection, correlated)[:, strong]
    np.testing.assert_allclose(points, expected.transform(scaled)[:, strong], atol=1e-8 * np.abs(points).max())


def test_the_largest_entry_of_a_component_is_positive(correlated):
    components = fit(correlated, components=12).components
    largest = np.abs(components).argmax(axis=1)
    assert (components[np.arange(12), largest] > 0).all()


def test_variances_are_those_of_the_points(correlated):
    for components in (None, 3):
        projection = fit(correlated, components=components)
        np.testing.assert_allclose(projection.variances, project(projection, correlated).var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("components", [None, 4])
def test_columns_that_never_occur_stay_in_the_projection_with_mean_0_and_scale_1(correlated, components):
    covered = np.array([1, 2, 5, 7, 8, 9])
    repeats, n_columns = 2, 10
    wide = np.zeros((400, repeats * n_columns))
    wide[:, np.concatenate([covered, n_columns + covered])] = correlated
    projection = fit_projection(
        Moments.of(correlated, scatter=components is not None),
        encoder=None,
        columns=covered,
        n_columns=n_columns,
        repeats=repeats,
        standardize=True,
        components=components,
    )
    scaler = StandardScaler().fit(wide)
    np.testing.assert_allclose(projection.mean, scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(projection.scale, scaler.scale_, rtol=1e-9)
    expected = scaler.transform(wide)
    if components:
        expected = PCA(components, svd_solver="full").fit_transform(expected)
    np.testing.assert_allclose(project(projection, wide), expected, atol=1e-8)


@pytest.mark.parametrize("width", [3, 6, 9, 40])
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("standardize", [True, False])
def test_moments_before_the_encoder_give_the_projection_of_the_encoded_vectors(width, repeats, standardize):
    rng = np.random.default_rng(4)
    raw_width = 6
    raw = rng.standard_normal((300, repeats * raw_width)) @ rng.standard_normal((repeats * raw_width,) * 2) + 2
    encoder = rng.uniform(-1, 1, (raw_width, width))
    encoded = np.hstack([part @ encoder for part in np.split(raw, repeats, axis=1)])
    components = min(raw_width, width) * repeats
    projection = fit_projection(
        Moments.of(raw, scatter=True),
        encoder=encoder,
        columns=None,
        n_columns=width,
        repeats=repeats,
        standardize=standardize,
        components=components,
    )
    scaler = StandardScaler(with_std=standardize).fit(encoded)
    scaled = scaler.transform(encoded)
    expected = PCA(components, svd_solver="full").fit(scaled)
    np.testing.assert_allclose(projection.mean, scaler.mean_, rtol=1e-10, atol=1e-12)
    if standardize:
        np.testing.assert_allclose(projection.scale, scaler.scale_, rtol=1e-10)
    np.testing.assert_allclose(projection.components, expected.components_, atol=1e-7)
    np.testing.assert_allclose(project(projection, encoded), expected.transform(scaled), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(projection.variances, expected.explained_variance_ * 299 / 300, rtol=1e-8)


def test_moments_before_the_encoder_serve_for_standardisation_alone():
    rng = np.random.default_rng(5)
    raw, encoder = rng.standard_normal((50, 4)), rng.standard_normal((4, 7))
    projection = fit_projection(
        Moments.of(raw, scatter=True),
        encoder=encoder,
        columns=None,
        n_columns=7,
        repeats=1,
        standardize=True,
        components=None,
    )
    expected = StandardScaler().fit_transform(raw @ encoder)
    np.testing.assert_allclose(project(projection, raw @ encoder), expected, atol=1e-12)


def test_more_components_than_directions_with_variance_are_refused_with_both_numbers(correlated):
    deficient = np.hstack([correlated[:, :4], correlated[:, :4] @ np.ones((4, 2)), np.ones((400, 1))])
    assert len(fit(deficient, components=4).components) == 4
    with pytest.raises(ValueError, match=r"components = 5, and the node embeddings vary in 4 directions only"):
        fit(deficient, components=5)


def test_more_components_than_the_encoded_rank_are_refused():
    rng = np.random.default_rng(6)
    raw, encoder = rng.standard_normal((90, 3)), rng.standard_normal((3, 20))
    options = {"encoder": encoder, "columns": None, "n_columns": 20, "repeats": 1, "standardize": True}
    moments = Moments.of(raw, scatter=True)
    assert len(fit_projection(moments, components=3, **options).components) == 3
    with pytest.raises(ValueError, match=r"components = 4, and the node embeddings vary in 3 directions only"):
        fit_projection(moments, components=4, **options)


def test_vectors_that_are_all_alike_have_no_components():
    for fewer in (False, True):
        with pytest.raises(
            ValueError, match="the node embeddings do not vary, so that there are no principal components"
        ):
            fit(np.full((10, 3), 0.7), components=1, fewer=fewer)


@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("standardize", [True, False])
def test_variances_that_overflow_are_refused(components, standardize):
    vectors = np.random.default_rng(0).standard_normal((20, 3)) * [1e160, 1.0, 1.0]
    with np.errstate(over="ignore"):
        moments = Moments.of(vectors, scatter=True)
    options = {"columns": None, "n_columns": 3, "repeats": 1, "standardize": standardize, "components": components}
    for encoder in (None, np.eye(3)):
        with pytest.raises(
            ValueError, match=r"variances are not finite .*: lower diffusion\.layers, or set edges\.features"
        ):
            fit_projection(moments.merge(moments), encoder=encoder, **options)


def test_there_can_be_fewer_components_than_asked_for_where_that_is_allowed():
    vectors = np.random.default_rng(0).standard_normal((20, 2)) @ np.ones((2, 5))
    with pytest.raises(ValueError, match="vary in 1 directions only"):
        fit(vectors, components=3)
    projection = fit(vectors, components=3, fewer=True)
    assert projection.dimension == 1
    np.testing.assert_array_equal(projection.components, fit(vectors, components=1).components)


def test_rounding_errors_of_constant_columns_are_no_variance():
    alike = np.full((10, 3), 0.7)
    # The mean of ten times 0.7 is not 0.7 in floating point.
    assert alike.var() > 0
    for standardize in (True, False):
        projection = fit(alike, standardize=standardize)
        np.testing.assert_array_equal(projection.variances, 0)
        assert projection.rounding_step == 2.0**-28


def test_the_rounding_step_is_a_power_of_two_that_follows_the_scale():
    def step(scale):
        variances = np.full(4, scale**2)
        return Projection(np.zeros(4), np.ones(4), None, variances, float(variances.sum())).rounding_step

    assert step(1.0) == 2.0**-28
    assert step(1000.0) == 2.0 ** (9 - 28)
    assert step(0.0) == 2.0**-28
    for scale in np.geomspace(1e-9, 1e9, 37):
        assert np.frexp(step(scale))[0] == 0.5
        assert 2.0**-29 < step(scale) / scale <= 2.0**-28


@pytest.mark.parametrize("components", [2, 5])
def test_of_many_columns_only_the_components_that_are_wanted_are_found(correlated, monkeypatch, components):
    expected = fit(correlated, components=components)
    monkeypatch.setattr("wegl_dask.projection.DENSE_WIDTH", 3)
    found = fit(correlated, components=components)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-9)
    np.testing.assert_allclose(found.variances, expected.variances, rtol=1e-9)
    assert found.total_variance == pytest.approx(expected.total_variance, rel=1e-12)


def test_directions_without_variance_are_counted_among_many_columns_too(correlated, monkeypatch):
    monkeypatch.setattr("wegl_dask.projection.DENSE_WIDTH", 3)
    flat = correlated[:, :4] @ np.random.default_rng(3).standard_normal((4, 12))
    with pytest.raises(ValueError, match="vary in 4 directions only"):
        fit(flat, components=7)
    assert fit(flat, components=7, fewer=True).dimension == 4
