"""The constrained optimum, by the dual, by the barrier, and by trying every policy."""

from __future__ import annotations

import numpy as np
import pytest

from acpo.theory import duality, mdp
from acpo.theory.policies import closed_form, constraint, density


def _binding(problem: mdp.Problem, share: float) -> np.ndarray:
    free = constraint(problem, problem.soft[0], np.zeros(len(problem)))
    return (1 - share) * free + share * duality.largest_epsilon(problem)


def test_dual_and_barrier_agree_with_every_policy_on_a_grid() -> None:
    problem = mdp.random(6, 2, 2, np.random.default_rng(0))
    q, epsilon = problem.soft[0], _binding(problem, 0.6)
    lam, dual = duality.dual_minimum(problem, q, epsilon)
    policy, primal = duality.constrained_optimum(problem, q, epsilon)
    np.testing.assert_allclose(dual, primal, rtol=1e-9)
    np.testing.assert_allclose(policy, closed_form(problem, q, lam)[0], atol=1e-4)
    first = np.linspace(1e-5, 1 - 1e-5, 801)
    grid = np.stack([first, 1 - first], axis=-1)
    for n in range(6):
        weight = problem.occupancy[n]
        gained = [(grid * (q[n, s] - problem.alpha[n] * np.log(grid))).sum(-1) for s in range(2)]
        dense = [(grid * problem.log_beta[n, s]).sum(-1) for s in range(2)]
        values = weight[0] * gained[0][:, None] + weight[1] * gained[1][None]
        feasible = weight[0] * dense[0][:, None] + weight[1] * dense[1][None] >= epsilon[n]
        best = values[feasible].max()
        assert best <= primal[n] + 1e-10
        assert best == pytest.approx(primal[n], abs=5e-3)


def test_the_barrier_s_policy_is_feasible_and_a_policy() -> None:
    problem = mdp.random(200, 5, 3, np.random.default_rng(1), holes=True)
    epsilon = _binding(problem, 0.9)
    policy, _ = duality.constrained_optimum(problem, problem.soft[0], epsilon)
    assert (policy >= 0).all()
    assert (policy[~problem.support] == 0).all()
    np.testing.assert_allclose(policy.sum(axis=-1), 1.0, atol=1e-9)
    reached = (problem.occupancy * density(problem, policy)).sum(axis=-1)
    assert (reached >= epsilon).all()


def test_the_dual_s_minimum_is_the_least_of_a_scan() -> None:
    problem = mdp.random(30, 4, 3, np.random.default_rng(2))
    q, epsilon = problem.soft[0], _binding(problem, 0.5)
    lam, least = duality.dual_minimum(problem, q, epsilon)
    for factor in np.linspace(0.0, 3.0, 61):
        assert (duality.dual_value(problem, q, factor * lam, epsilon) >= least - 1e-11).all()
    np.testing.assert_allclose(constraint(problem, q, lam), epsilon, atol=1e-9)


def test_a_constraint_that_does_not_bind_has_lambda_zero() -> None:
    problem = mdp.random(30, 4, 3, np.random.default_rng(3))
    q = problem.soft[0]
    epsilon = constraint(problem, q, np.zeros(30)) - 0.2
    lam, least = duality.dual_minimum(problem, q, epsilon)
    assert (lam < 1e-20).all()
    free = duality.objective(problem, q, closed_form(problem, q, np.zeros(30))[0])
    np.testing.assert_allclose(least, free, rtol=1e-12)


def test_without_slater_the_dual_has_an_infimum_but_no_minimum() -> None:
    # πβ = (¾, ¼), Q = 0, ε = ε_max = log ¾: only the first action is feasible, with value 0. The
    # dual is log(¾^λ + ¼^λ) − λ log ¾ = log(1 + 3^−λ): above 0 at every λ, and as near as you like.
    problem = mdp.bandit([0, 0], [0.75, 0.25])
    epsilon = duality.largest_epsilon(problem)
    assert epsilon[0] == pytest.approx(np.log(0.75))
    for lam in (0.0, 1.0, 5.0, 20.0):
        dual = duality.dual_value(problem, problem.rewards, np.array([lam]), epsilon)[0]
        assert dual == pytest.approx(np.log1p(3.0**-lam), abs=1e-14)
        assert dual > 0


def test_beyond_slater_the_dual_falls_without_end() -> None:
    problem = mdp.bandit([0, 0], [0.75, 0.25])
    epsilon = duality.largest_epsilon(problem) + 0.1
    values = [
        duality.dual_value(problem, problem.rewards, np.array([lam]), epsilon)[0]
        for lam in (10.0, 100.0, 1000.0)
    ]
    np.testing.assert_allclose(values, [-1.0, -10.0, -100.0], atol=1e-4)
