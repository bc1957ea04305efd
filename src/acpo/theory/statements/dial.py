"""How λ acts: Proposition 1, the dual function and its step, strong duality."""

from __future__ import annotations

import numpy as np

from acpo.theory import duality
from acpo.theory.mdp import Array, Problem, per_action, per_state
from acpo.theory.policies import (
    closed_form,
    constraint,
    critic,
    density,
    density_variance,
)
from acpo.theory.statements.base import Check, at_most, identity, worst_of


def derivative_of_density(problem: Problem, lam: Array) -> Check:
    """d/dλ g_s(λ) = Var_{π*_λ}(log πβ) / α   (Proposition 1).

    The derivative is a complex step: Im g_s(λ + ih)/h, exact to rounding and without the formula.
    """
    q = critic(problem, "soft")
    alpha = per_action(problem.alpha)
    tiny = 1e-30
    logits = np.where(problem.support, (q + per_action(lam) * problem.log_beta) / alpha, -np.inf)
    logits = logits - logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits) * np.exp(1j * tiny * problem.log_beta / alpha)
    stepped = (powers * problem.log_beta).sum(axis=-1) / powers.sum(axis=-1)
    variance = density_variance(problem, closed_form(problem, q, lam)[0])
    return identity(stepped.imag / tiny, variance / per_state(problem.alpha))


def density_increases(problem: Problem, lam: Array) -> Check:
    """g(λ) ≤ g(λ') for λ < λ'   (Proposition 1)."""
    q = critic(problem, "soft")
    later = 1.5 * lam + 0.1 * problem.alpha
    return at_most(constraint(problem, q, lam), constraint(problem, q, later))._replace(
        tightness=np.full(len(problem), np.nan)
    )


def density_limit(problem: Problem, lam: Array) -> Check:
    """max_a log πβ − g_s(λ) ≤ (max Q − min Q + α log A) / λ: π*_∞ is πβ's mode, not πβ."""
    q = critic(problem, "soft")
    star, _ = closed_form(problem, q, lam)
    low = np.where(problem.support, q, np.inf).min(axis=-1)
    high = np.where(problem.support, q, -np.inf).max(axis=-1)
    top = np.where(problem.support, problem.log_beta, -np.inf).max(axis=-1)
    entropy = per_state(problem.alpha) * np.log(q.shape[-1])
    dial = per_state(np.maximum(lam, 1e-3 * problem.alpha))
    return at_most(top - density(problem, star), (high - low + entropy) / dial)


def _epsilons(problem: Problem, q: Array) -> list[Array]:
    """One ε that does not bind and two that do, all under Slater's ε_max."""
    free, top = constraint(problem, q, np.zeros(len(problem))), duality.largest_epsilon(problem)
    return [free - 0.1, 0.5 * (free + top), 0.1 * free + 0.9 * top]


def dual_slope(problem: Problem, lam: Array) -> Check:
    """The dual's derivative is g(λ) − ε, the slack in the λ step (Eq-lambda-descend).

    As a subgradient: D(λ') ≥ D(λ) + (g(λ) − ε)(λ' − λ) on both sides of λ.
    """
    q = critic(problem, "soft")
    epsilon = _epsilons(problem, q)[1]
    here = duality.dual_value(problem, q, lam, epsilon)
    slope = constraint(problem, q, lam) - epsilon
    checks = []
    for other in (0.5 * lam, 0.99 * lam, 1.01 * lam, 2.0 * lam + 0.1 * problem.alpha):
        there = duality.dual_value(problem, q, other, epsilon)
        checks.append(at_most(here + slope * (other - lam), there))
    return worst_of(checks)._replace(tightness=np.full(len(problem), np.nan))


def dual_step_descends(problem: Problem, lam: Array) -> Check:
    """One projected λ step never raises the dual when η ≤ 4α / (max log πβ − min log πβ)².

    The dual's curvature is E[Var(log πβ)]/α, and a variance is at most a quarter of the squared
    range.
    """
    q = critic(problem, "soft")
    epsilon = _epsilons(problem, q)[1]
    top = np.where(problem.support, problem.log_beta, -np.inf).max(axis=(-2, -1))
    bottom = np.where(problem.support, problem.log_beta, np.inf).min(axis=(-2, -1))
    rate = 4.0 * problem.alpha / np.maximum(top - bottom, 1e-3) ** 2
    stepped = np.maximum(lam - rate * (constraint(problem, q, lam) - epsilon), 0.0)
    before = duality.dual_value(problem, q, lam, epsilon)
    after = duality.dual_value(problem, q, stepped, epsilon)
    return at_most(after, before)._replace(tightness=np.full(len(problem), np.nan))


def strong_duality(problem: Problem, lam: Array) -> Check:
    """min_{λ≥0} max_π L(π, λ) is the constrained optimum, under Slater's condition (Eq-CCI-Dual).

    The optimum comes from a method that knows neither the dual nor the closed form.
    """
    q = critic(problem, "soft")
    checks = []
    for epsilon in _epsilons(problem, q):
        # Two exactly tied likeliest actions in every state leave no ε that binds.
        held = epsilon < duality.largest_epsilon(problem) - 1e-9
        epsilon = np.where(held, epsilon, duality.largest_epsilon(problem) - 0.1)
        _, dual = duality.dual_minimum(problem, q, epsilon)
        policy, primal = duality.constrained_optimum(problem, q, epsilon)
        reached = (problem.occupancy * density(problem, policy)).sum(axis=-1)
        checks += [identity(dual, primal), at_most(epsilon, reached)]
    return worst_of(checks)._replace(tightness=np.full(len(problem), np.nan))
