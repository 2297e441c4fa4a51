"""How far a transport plan may be from the optimum, by a dual solution: a proof that does not depend on the solver.

Notes
-----
Let u and v be any numbers, one a point on either side, and s the least of c_jk - u_j - v_k. Then every coupling of mass 1
with marginals a and b costs at least <a, u> + <b, v> + s, and a plan pi among them costs <pi, c - u - v> - s more than
that. For an optimal plan and an optimal dual both terms are 0 up to rounding (complementary slackness).
"""

import numpy as np
import numpy.typing as npt

FloatMatrix = npt.NDArray[np.float64]

EXCESS_TOLERANCE = 1e-9
"""What a plan may cost above the optimum, as a part of its largest cost. Rounding gives 1e-14 for a molecule, and 1e-12
for thousands of points."""


def possible_excess(plan: FloatMatrix, costs: FloatMatrix, reference_dual: FloatMatrix, dual: FloatMatrix) -> float:
    """Bound what a plan may cost above the optimum.

    Parameters
    ----------
    plan : float64, (N, n)
        Non-negative, of mass 1, with the marginals of the problem.
    costs : float64, (N, n)
    reference_dual, dual : float64, (N,) and (n,)
        Any numbers: the better they are, the smaller the bound.

    Returns
    -------
    float
        The bound, in units of the costs; NaN where something is NaN.

    Examples
    --------
    >>> costs = np.array([[0.0, 3.0], [1.0, 0.0]])
    >>> possible_excess(np.eye(2) / 2, costs, np.zeros(2), np.zeros(2))
    0.0
    >>> possible_excess(np.eye(2)[::-1] / 2, costs, np.zeros(2), np.zeros(2))
    2.0
    """
    slack = costs - reference_dual[:, None]
    slack -= dual
    return float(np.vdot(plan, slack) - slack.min())
