"""Practical weighted behaviour cloning: when λ is large enough for πβ to outweigh the advantage."""

from __future__ import annotations

import numpy as np

from acpo.theory.mdp import Array, Problem, log, per_action, per_state, soft_values
from acpo.theory.policies import (
    closed_form,
    critic,
    tilted_behavior,
    total_variation,
)
from acpo.theory.statements.base import Check, at_most, identity, worst_of

SMALL = 0.01
"""δ, the paper's "small constant to avoid division by zero"."""
MUCH = 100.0
"""What "≫" is taken to mean: a hundred times."""


def _entropy_scale(problem: Problem, *policies: Array) -> Array:
    """(R_max + α C_max) / (1 − γ) for C_max = max |log π| over these policies, (N,)."""
    reward = np.abs(problem.rewards).max(axis=(-2, -1))
    clip = np.max([np.abs(log(policy)).max(axis=(-2, -1)) for policy in policies], axis=0)
    return (reward + problem.alpha * clip) / (1.0 - problem.gamma)


def _soft_advantage(problem: Problem, policy: Array) -> Array:
    q, value = soft_values(problem, policy)
    return q - value[..., None]


def advantage_bound(problem: Problem, lam: Array) -> Check:
    """|A^π(s,a)| ≤ 2 (R_max + α C_max) / (1 − γ)   (Eq:A_bound_maxent)."""
    checks = []
    star = closed_form(problem, critic(problem, "soft"), lam)[0]
    for policy in (problem.behavior, problem.other, star):
        size = np.abs(_soft_advantage(problem, policy)).max(axis=(-2, -1))
        checks.append(at_most(size, 2.0 * _entropy_scale(problem, policy)))
    return worst_of(checks)


def advantage_ratio_bound(problem: Problem, lam: Array) -> Check:
    """|A/log πβ| ≤ |A|/(C_min + δ) ≤ 2(R_max + αC_max)/((1−γ)(C_min + δ)), both, as printed.

    δ > 0 makes the divisor larger than the least |log πβ|, so the first step fails at that action.
    """
    size, ratio, least = _advantage_ratio(problem)
    first = at_most(ratio, np.where(problem.support, size / (per_action(least) + SMALL), np.inf))
    whole = ratio_bound(problem, least + SMALL)
    second = at_most(ratio, np.broadcast_to(per_action(whole), ratio.shape))
    return worst_of([first, second])


def advantage_ratio_bound_corrected(problem: Problem, lam: Array) -> Check:
    """|A/log πβ| ≤ 2(R_max + αC_max)/((1−γ) C_min), without δ, where C_min > 0."""
    _, ratio, least = _advantage_ratio(problem)
    certain = least == 0.0
    whole = ratio_bound(problem, np.where(certain, 1.0, least))
    found = at_most(np.where(per_action(certain), 0.0, ratio), per_action(whole))
    return Check(np.where(certain, np.nan, found.violation), found.tightness)


def ratio_bound(problem: Problem, divisor: Array) -> Array:
    """2(R_max + αC_max)/((1−γ) divisor); C_max is that of both policies at play, (N,)."""
    return 2.0 * _entropy_scale(problem, problem.other, problem.behavior) / divisor


def _advantage_ratio(problem: Problem) -> tuple[Array, Array, Array]:
    """|A|, |A/log πβ| (∞ where πβ = 1, 0 outside the support) and C_min; A of policy `other`."""
    size = np.abs(_soft_advantage(problem, problem.other))
    height = np.abs(problem.log_beta)
    ratio = np.where(height > 0, size / np.where(height > 0, height, 1.0), np.inf)
    ratio = np.where(problem.support, ratio, 0.0)
    return size, ratio, np.where(problem.support, height, np.inf).min(axis=(-2, -1))


def wbc_pointwise(problem: Problem, lam: Array) -> Check:
    """λ ≫ α + A/log πβ lets the wBC term outweigh the advantage's: |(λ−α) log πβ| ≥ |A|.

    Taken at a hundred times the right side, or at λ = α where that is larger. Where A > 0 that
    side is below α and may be 0 or less: λ = α is then far above it, and the wBC term is 0.
    """
    size, ratio = _advantage_and_ratio(problem)
    alpha = per_action(problem.alpha)
    dial = np.maximum(alpha, MUCH * (alpha + ratio))
    return at_most(size, np.abs((dial - alpha) * problem.log_beta))


def wbc_pointwise_corrected(problem: Problem, lam: Array) -> Check:
    """λ = α + 100 |A/log πβ| makes the wBC term a hundred times the advantage's."""
    size, ratio = _advantage_and_ratio(problem)
    return at_most(size, np.abs(MUCH * ratio * problem.log_beta) / MUCH * (1.0 + 1e-12))


def _advantage_and_ratio(problem: Problem) -> tuple[Array, Array]:
    advantage = _soft_advantage(problem, problem.behavior)
    known = problem.support & (problem.log_beta < 0)
    ratio = advantage / np.where(known, problem.log_beta, 1.0)
    return np.where(known, np.abs(advantage), 0.0), np.where(known, ratio, 0.0)


def wbc_sufficient(problem: Problem, lam: Array) -> Check:
    """At λ = α + 100 × the sufficient bound, π*_λ is πβ^{λ/α} normalised   (Table 1's "≈").

    Dropping exp(A/α) from the weight changes nothing only where πβ prefers some action clearly.
    """
    _, _, least = _advantage_ratio(problem)
    dial = problem.alpha + MUCH * 2.0 * _entropy_scale(problem, problem.behavior) / (least + SMALL)
    star = closed_form(problem, critic(problem, "soft"), dial)[0]
    distance = total_variation(star, tilted_behavior(problem, dial))
    return identity(np.zeros_like(distance), distance)


def wbc_sufficient_corrected(problem: Problem, lam: Array) -> Check:
    """D_TV(π*_λ, πβ^{λ/α} normalised) ≤ (A−1) exp((max Q − min Q − λ·gap)/α).

    gap(s): from the largest log πβ(·|s) to the second; it must be positive.
    """
    q = critic(problem, "soft")
    star = closed_form(problem, q, lam)[0]
    distance = total_variation(star, tilted_behavior(problem, lam))
    inside = np.where(problem.support, problem.log_beta, -np.inf)
    ordered = np.sort(inside, axis=-1)
    gap = ordered[..., -1] - ordered[..., -2]
    # With one supported action both policies are that action, and any bound will do.
    gap = np.where(np.isfinite(gap), gap, 0.0)
    span = np.where(problem.support, q, -np.inf).max(axis=-1)
    span = span - np.where(problem.support, q, np.inf).min(axis=-1)
    exponent = (span - per_state(lam) * gap) / per_state(problem.alpha)
    bound = (q.shape[-1] - 1) * np.exp(np.minimum(exponent, 700.0))
    return at_most(distance, bound)
