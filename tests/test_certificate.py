import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from wegl_dask.certificate import possible_excess


@settings(max_examples=200)
@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_no_plan_costs_more_above_the_optimum_than_any_dual_admits(n, seed):
    """The optimum of uniform weights is an assignment."""
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0, 1, (n, n))
    optimum = costs[linear_sum_assignment(costs)].mean()
    plan = sum(weight * np.eye(n)[rng.permutation(n)] for weight in rng.dirichlet(np.ones(3))) / n
    bound = possible_excess(plan, costs, rng.normal(0, 1, n), rng.normal(0, 1, n))
    assert (plan * costs).sum() - optimum <= bound + 1e-12


def test_an_optimal_dual_leaves_the_excess_alone():
    costs = np.array([[0.0, 3.0], [1.0, 2.0]])
    reference_dual, dual = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    assert (costs - reference_dual[:, None] - dual).min() == 0
    assert possible_excess(np.eye(2) / 2, costs, reference_dual, dual) == 0
    # The other assignment costs (3 + 1) / 2 instead of (0 + 2) / 2.
    assert possible_excess(np.eye(2)[::-1] / 2, costs, reference_dual, dual) == 1


def test_a_dual_that_is_not_tight_or_exceeds_the_costs_proves_so_much_less():
    costs = np.array([[1.0, 4.0], [4.0, 1.0]])
    assert possible_excess(np.eye(2) / 2, costs, np.array([0.0, 0.0]), np.array([1.5, 1.0])) == pytest.approx(0.25)
    assert possible_excess(np.eye(2) / 2, costs, np.array([0.0, 0.0]), np.array([0.5, 1.0])) == pytest.approx(0.25)


def test_a_shift_of_all_potentials_changes_nothing():
    costs = np.array([[1.0, 4.0], [4.0, 1.0]])
    assert possible_excess(np.eye(2) / 2, costs, np.array([-7.0, -7.0]), np.array([1.0, 1.0])) == 0


def test_nan_proves_nothing():
    assert not possible_excess(np.eye(2) / 2, np.ones((2, 2)), np.zeros(2), np.array([0.0, math.nan])) <= 1e9
