"""The closed form π*_λ, what it implies, and distances between policies."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np

from acpo.theory.mdp import (
    Array,
    Problem,
    expect,
    log,
    per_action,
    soft_values,
)

Reading = Literal["plain", "soft", "shaped", "own"]
"""Which Q the paper's π*_λ is made of; it prints "Q(s,a)" and means, in different places,
plain: Q^πβ under the reward r (proof of Theorem 1); soft: Q^πβ of Section 3.1; shaped: Q̃^πβ under
r − α log πβ (F_λ of Theorem 2); own: the soft Q of π*_λ itself, which ACPO's critic learns."""

READINGS: tuple[Reading, ...] = ("plain", "soft", "shaped", "own")


def closed_form(problem: Problem, q: Array, lam: Array) -> tuple[Array, Array]:
    """π*_λ = exp((Q − Z_λ)/α) πβ^{λ/α} and Z_λ(s)   (Eq-CCI-ClosedForm).

    Inside the support of πβ: outside, πβ^{λ/α} counts as 0 at λ = 0 too.
    """
    alpha = per_action(problem.alpha)
    logits = (q + per_action(lam) * problem.log_beta) / alpha
    logits = np.where(problem.support, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits - top)
    total = powers.sum(axis=-1, keepdims=True)
    return powers / total, (alpha * (top + np.log(total)))[..., 0]


def tilted_behavior(problem: Problem, lam: Array) -> Array:
    """πβ^{λ/α}, normalised: what is left of π*_λ when the advantage is dropped."""
    return closed_form(problem, np.zeros_like(problem.rewards), lam)[0]


def density(problem: Problem, policy: Array) -> Array:
    """E_{a~π(·|s)}[log πβ(a|s)], which is g_s(λ) for π = π*_λ, (N, S)."""
    return expect(policy, problem.log_beta)


def constraint(problem: Problem, q: Array, lam: Array) -> Array:
    """g(λ) = E_{s~D, a~π*_λ}[log πβ(a|s)]   (Proposition 1), (N,)."""
    return (problem.occupancy * density(problem, closed_form(problem, q, lam)[0])).sum(axis=-1)


def density_variance(problem: Problem, policy: Array) -> Array:
    """Var_{a~π(·|s)}(log πβ(a|s)), (N, S)."""
    centred = problem.log_beta - density(problem, policy)[..., None]
    return expect(policy, centred**2)


def divergence(policy: Array, reference: Array) -> Array:
    """KL(π ‖ reference) per state; ∞ where π leaves the support of the reference."""
    outside = np.where((policy > 0) & (reference <= 0), policy, 0.0).sum(axis=-1)
    inside = expect(np.where(reference > 0, policy, 0.0), log(policy) - log(reference))
    return np.where(outside > 0, np.inf, inside)


def total_variation(policy: Array, reference: Array) -> Array:
    """D_TV = ½ Σ_a |π − reference| per state."""
    return 0.5 * np.abs(policy - reference).sum(axis=-1)


def critic(problem: Problem, reading: Reading) -> Array:
    """The Q of πβ that π*_λ is made of; its own Q is found by `own_policy`."""
    return {"plain": problem.plain, "soft": problem.soft, "shaped": problem.shaped}[reading][0]


def optimum(problem: Problem, lam: Array, reading: Reading) -> tuple[Array, Array]:
    """π*_λ under one of the four readings of Q, and on which problems it was found, (N,)."""
    if reading == "own":
        policy, residual = own_policy(problem, lam)
        return policy, residual < 1e-10
    found = np.ones(len(problem), dtype=bool)
    return closed_form(problem, critic(problem, reading), lam)[0], found


def own_policy(problem: Problem, lam: Array, steps: int = 400) -> tuple[Array, Array]:
    """The fixed point π ∝ exp(Q^π/α) πβ^{λ/α} of improvement and soft evaluation, as ACPO seeks it.

    Returns π and how far it is from one, D_TV(π, its improvement), the largest over states. The
    iteration need not converge: Q^π does not contain λ log πβ, so a step may lower J.
    """
    return _own_policy(problem, lam.tobytes(), steps)


@lru_cache(maxsize=64)
def _own_policy(problem: Problem, dial: bytes, steps: int) -> tuple[Array, Array]:
    lam = np.frombuffer(dial)
    policy, residual = problem.behavior.copy(), np.full(len(problem), np.inf)
    moving = np.arange(len(problem))
    for step in range(steps):
        part = problem.take(moving)
        improved = closed_form(part, soft_values(part, policy[moving])[0], lam[moving])[0]
        residual[moving] = total_variation(policy[moving], improved).max(axis=-1)
        # Halving the step ends the cycles of two policies that answer each other.
        share = 1.0 if step < 50 else 0.5
        policy[moving] = (1.0 - share) * policy[moving] + share * improved
        moving = moving[residual[moving] >= 1e-13]
        if not len(moving):
            break
    return policy, residual
