"""The closed form and what is derived from it, against brute force and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from acpo import cci
from acpo.theory import mdp
from acpo.theory.policies import (
    closed_form,
    constraint,
    density,
    density_variance,
    divergence,
    own_policy,
    total_variation,
)


@pytest.fixture
def problem() -> mdp.Problem:
    return mdp.random(10, 4, 3, np.random.default_rng(3), holes=True)


@pytest.mark.parametrize("multiple", [0.0, 0.4, 1.0, 20.0])
def test_the_library_s_closed_form_is_the_same_policy(
    problem: mdp.Problem, multiple: float
) -> None:
    q = problem.soft[0]
    found, _ = closed_form(problem, q, multiple * problem.alpha)
    log_beta = np.where(problem.support, problem.log_beta, -np.inf)
    for n in range(len(problem)):
        alpha = float(problem.alpha[n])
        theirs = cci.closed_form(q[n], log_beta[n], multiple * alpha, alpha)
        np.testing.assert_allclose(found[n], theirs, atol=2e-4)


def test_the_closed_form_of_numbers_worked_by_hand() -> None:
    # exp(Q/α) πβ^{λ/α} = (1·¾², 3·¼²) = (9, 3)/16 at Q = (0, log 3), α = 1, λ = 2.
    problem = mdp.bandit([0.0, np.log(3.0)], [0.75, 0.25])
    policy, normaliser = closed_form(problem, problem.rewards, np.array([2.0]))
    np.testing.assert_allclose(policy[0, 0], [0.75, 0.25])
    assert normaliser[0, 0] == pytest.approx(np.log(12 / 16))


def test_the_closed_form_is_the_best_of_all_policies_on_a_grid() -> None:
    problem = mdp.random(5, 2, 2, np.random.default_rng(4))
    q, lam = problem.soft[0], 1.7 * problem.alpha
    star, normaliser = closed_form(problem, q, lam)
    first = np.linspace(1e-6, 1 - 1e-6, 20_001)
    grid = np.stack([first, 1 - first], axis=-1)
    for n in range(5):
        for s in range(2):
            gained = q[n, s] - problem.alpha[n] * np.log(grid) + lam[n] * problem.log_beta[n, s]
            values = (grid * gained).sum(axis=-1)
            assert values.max() <= normaliser[n, s] + 1e-12
            assert values.max() == pytest.approx(normaliser[n, s], abs=1e-6)
            assert first[values.argmax()] == pytest.approx(star[n, s, 0], abs=1e-4)


def test_the_slope_of_g_is_the_variance_by_finite_differences(problem: mdp.Problem) -> None:
    q, lam, step = problem.soft[0], 0.8 * problem.alpha, 1e-5 * problem.alpha
    slope = constraint(problem, q, lam + step) - constraint(problem, q, lam - step)
    star, _ = closed_form(problem, q, lam)
    variance = (problem.occupancy * density_variance(problem, star)).sum(axis=-1)
    np.testing.assert_allclose(slope / (2 * step), variance / problem.alpha, rtol=1e-5, atol=1e-7)


def test_distances_of_numbers_worked_by_hand() -> None:
    left, right = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    assert total_variation(left, right) == pytest.approx(0.4)
    assert divergence(left, right) == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2))
    assert divergence(left, np.array([1.0, 0.0])) == np.inf
    assert divergence(np.array([1.0, 0.0]), left) == pytest.approx(-np.log(0.9))


def test_large_lambda_takes_the_likeliest_action_and_breaks_ties_by_q() -> None:
    problem = mdp.bandit([5.0, 0.0, 1.0], [0.2, 0.4, 0.4])
    policy, _ = closed_form(problem, problem.rewards, np.array([1000.0]))
    np.testing.assert_allclose(policy[0, 0], [0, 1 / (1 + np.e), np.e / (1 + np.e)], atol=1e-12)
    assert density(problem, policy)[0, 0] == pytest.approx(np.log(0.4))


def test_its_own_policy_at_lambda_zero_is_that_of_soft_value_iteration(
    problem: mdp.Problem,
) -> None:
    policy, residual = own_policy(problem, np.zeros(len(problem)))
    assert residual.max() < 1e-12
    for n in range(len(problem)):
        alpha, values = problem.alpha[n], np.zeros(4)
        for _ in range(3000):
            ahead = problem.rewards[n] + problem.gamma[n] * problem.transitions[n] @ values
            logits = np.where(problem.support[n], ahead / alpha, -np.inf)
            values = alpha * np.logaddexp.reduce(logits, axis=-1)
        best = np.exp(logits - logits.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(policy[n], best / best.sum(-1, keepdims=True), atol=1e-7)
