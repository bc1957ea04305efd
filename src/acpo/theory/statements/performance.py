"""The performance difference lemma, the steps of the proofs, and the two lower bounds."""

from __future__ import annotations

import numpy as np

from acpo.theory import bounds
from acpo.theory.mdp import (
    Array,
    Problem,
    expect,
    log,
    occupancy,
    per_action,
    per_state,
    plain_values,
    soft_return,
)
from acpo.theory.policies import (
    Reading,
    density,
    divergence,
    optimum,
    total_variation,
)
from acpo.theory.statements.base import Check, at_least, at_most, identity, worst_of

# --- performance differences --------------------------------------------------------------------


def standard_difference(problem: Problem, lam: Array) -> Check:
    """η(π') − η(π) = E_{d_π'} E_π'[A^π] / (1−γ)   (Eq-Per-Dif-Standard)."""
    advantage = bounds.advantage(problem, "plain")
    gained = (occupancy(problem, problem.other) * expect(problem.other, advantage)).sum(axis=-1)
    returns = [
        (problem.start * plain_values(problem, policy)[1]).sum(axis=-1)
        for policy in (problem.other, problem.behavior)
    ]
    return identity(returns[0] - returns[1], gained / (1.0 - problem.gamma))


def soft_difference(problem: Problem, lam: Array) -> Check:
    """J(π) − J(πβ) = E_{d_π}[E_π Ã^πβ − α KL(π‖πβ)] / (1−γ)   (Lemma 1, Eq-soft-pdl-main)."""
    return _soft_difference(problem, problem.other)


def soft_difference_anywhere(problem: Problem, lam: Array) -> Check:
    """The same for a π that leaves the support of πβ: the right side is then ∞ − ∞."""
    return _soft_difference(problem, _uniform(problem))


def _soft_difference(problem: Problem, policy: Array) -> Check:
    shaped, values = problem.shaped
    outside = (np.where(problem.support, 0.0, policy) > 0).any(axis=(-2, -1))
    inside = np.where(per_action(outside), problem.behavior, policy)
    advantage = expect(inside, shaped - values[..., None])
    distance = per_state(problem.alpha) * divergence(inside, problem.behavior)
    right = (occupancy(problem, inside) * (advantage - distance)).sum(axis=-1)
    left = soft_return(problem, inside) - soft_return(problem, problem.behavior)
    found = identity(left, right / (1.0 - problem.gamma))
    return found._replace(violation=np.where(outside, np.inf, found.violation))


def soft_difference_corrected(problem: Problem, lam: Array) -> Check:
    """J(π) − J(πβ) = E_{d_π}[E_π(Q^πβ − α log π) − V^πβ] / (1−γ), soft Q and V, for every π.

    Inside the support of πβ it is Lemma 1, because Ã = Q − α log πβ − V.
    """
    policy = _uniform(problem)
    q, values = problem.soft
    gained = expect(policy, q - per_action(problem.alpha) * log(policy)) - values
    right = (occupancy(problem, policy) * gained).sum(axis=-1) / (1.0 - problem.gamma)
    return identity(soft_return(problem, policy) - soft_return(problem, problem.behavior), right)


def _uniform(problem: Problem) -> Array:
    return np.full_like(problem.behavior, 1.0 / problem.behavior.shape[-1])


# --- steps of the proofs ------------------------------------------------------------------------


def mean_advantage(problem: Problem, lam: Array) -> Check:
    """E_{a~πβ}[A^πβ(s,a)] = 0 for the A of the reward r, used for F(πβ).

    With the soft A of Section 3.1 it would be −α H(πβ).
    """
    mean = expect(problem.behavior, bounds.advantage(problem, "plain"))
    return identity(np.zeros_like(mean), mean)


def occupancy_shift(problem: Problem, lam: Array) -> Check:
    """‖d_π − d_πβ‖₁ ≤ 2γ/(1−γ) Δ_TV(π, πβ; d_πβ)   (Eq-occupancy-tv-bound-me-appendix)."""
    distance = np.abs(occupancy(problem, problem.other) - problem.occupancy).sum(axis=-1)
    allowed = 2.0 * problem.gamma / (1.0 - problem.gamma)
    return at_most(distance, allowed * bounds.mean_total_variation(problem, problem.other))


def shaping_shift(problem: Problem, lam: Array) -> Check:
    """|E_π[Ã − A]| ≤ 4αB/(1−γ) D_TV(π, πβ) in every state   (Eq-Ac-tv-bound-state-appendix)."""
    difference = bounds.advantage(problem, "shaped") - bounds.advantage(problem, "plain")
    allowed = 4.0 * problem.alpha * problem.beta_bound / (1.0 - problem.gamma)
    distance = total_variation(problem.other, problem.behavior)
    return at_most(np.abs(expect(problem.other, difference)), per_state(allowed) * distance)


def density_shift(problem: Problem, lam: Array) -> Check:
    """|E_π log πβ − E_πβ log πβ| ≤ 2B D_TV(π, πβ) in every state (Eq-deltag-state-tv-appendix)."""
    difference = density(problem, problem.other) - density(problem, problem.behavior)
    distance = total_variation(problem.other, problem.behavior)
    return at_most(np.abs(difference), 2.0 * per_state(problem.beta_bound) * distance)


# --- the lower bounds ---------------------------------------------------------------------------


def theorem_1(problem: Problem, lam: Array, reading: Reading) -> Check:
    """J(π*_λ) ≥ J(πβ) − density − shaping − shift   (Theorem 1, Eq-Opt-Policy-LB)."""
    star, found = optimum(problem, lam, reading)
    return _lower_bound(problem, star, bounds.loss(problem, star, lam).total).only(found)


def theorem_1_soft(problem: Problem, lam: Array) -> Check:
    """J(π*_λ) ≥ J(πβ) − 2Bλ/(1−γ) Δ_TV − shift, for the soft Q^πβ: no shaping term."""
    star, _ = optimum(problem, lam, "soft")
    allowed = _density_only(problem, star, lam) + bounds.loss(problem, star, lam).shift
    return _lower_bound(problem, star, allowed)


def theorem_1_shaped(problem: Problem, lam: Array) -> Check:
    """J(π*_λ) ≥ J(πβ) − density − shift, for Q̃^πβ: no shaping term."""
    star, _ = optimum(problem, lam, "shaped")
    loss = bounds.loss(problem, star, lam)
    return _lower_bound(problem, star, loss.density + loss.shift)


def theorem_1_own(problem: Problem, lam: Array) -> Check:
    """J(π) ≥ J(πβ) − λ/(1−γ) E_{d_πβ}[g_s(π) − g_s(πβ)] for π ∝ exp(Q^π/α) πβ^{λ/α}.

    With the lemma's roles exchanged J(πβ) − J(π) = E_{d_πβ}[E_πβ(Q^π − α log πβ) − V^π]/(1−γ), and
    π maximises E[Q^π − α log π + λ log πβ] in every state, so each state's difference is at most
    λ (g_s(π) − g_s(πβ)). Nothing is lost to a shift of states, and at λ = 0 nothing at all.
    """
    policy, found = optimum(problem, lam, "own")
    return _lower_bound(problem, policy, own_loss(problem, policy, lam)).only(found)


def own_loss(problem: Problem, policy: Array, lam: Array) -> Array:
    """λ/(1−γ) E_{d_πβ}[g_s(π) − g_s(πβ)], at most 2Bλ/(1−γ) Δ_TV, (N,)."""
    rise = density(problem, policy) - density(problem, problem.behavior)
    return lam / (1.0 - problem.gamma) * (problem.occupancy * rise).sum(axis=-1)


def gap_is_positive(problem: Problem, lam: Array, made_of: Reading, measured_by: Reading) -> Check:
    """δ^sub(λ) = F_λ(π*_λ) − F_λ(πθ) ≥ 0   (Theorem 2, Eq-subopt-gap-def)."""
    star, _ = optimum(problem, lam, made_of)
    best = bounds.surrogate(problem, star, lam, measured_by)
    checks = [
        at_most(bounds.surrogate(problem, policy, lam, measured_by), best)
        for policy in _candidates(problem, star)
    ]
    return worst_of(checks)._replace(tightness=np.full(len(problem), np.nan))


def theorem_2(
    problem: Problem, lam: Array, made_of: Reading, measured_by: Reading, shaping: bool = True
) -> Check:
    """J(πθ) ≥ J(πβ) − density − gap − shaping − shift   (Theorem 2, Eq-Para-Policy-LB).

    `made_of` is the Q in π*_λ, `measured_by` the advantage in F_λ.
    """
    star, _ = optimum(problem, lam, made_of)
    best = bounds.surrogate(problem, star, lam, measured_by)
    checks = []
    for policy in _candidates(problem, star):
        gap = best - bounds.surrogate(problem, policy, lam, measured_by)
        loss = bounds.loss(problem, policy, lam, gap)
        allowed = loss.total if shaping else loss.total - loss.shaping
        checks.append(_lower_bound(problem, policy, allowed))
    return worst_of(checks)


def _candidates(problem: Problem, star: Array) -> list[Array]:
    """What πθ may be: πβ itself, some policy, and points on the way to π*_λ."""
    return [
        problem.behavior,
        problem.other,
        0.99 * problem.behavior + 0.01 * problem.other,
        0.5 * (problem.behavior + star),
        star,
    ]


def _density_only(problem: Problem, policy: Array, lam: Array) -> Array:
    distance = bounds.mean_total_variation(problem, policy)
    return 2.0 * problem.beta_bound * lam / (1.0 - problem.gamma) * distance


def _lower_bound(problem: Problem, policy: Array, allowed: Array) -> Check:
    returned = soft_return(problem, policy)
    return at_least(returned, soft_return(problem, problem.behavior), allowed)
