"""From the constrained problem to weighted regression: the closed form, its weight, the regimes."""

from __future__ import annotations

import numpy as np

from acpo.theory.mdp import Array, Problem, expect, log, per_action, per_state
from acpo.theory.policies import (
    closed_form,
    critic,
    density,
)
from acpo.theory.statements.base import Check, identity, worst_of


def closed_form_is_optimal(problem: Problem, lam: Array) -> Check:
    """E_π[Q − α log π + λ log πβ] = Z_λ − α KL(π ‖ π*_λ) for every π   (Eq-CCI-ClosedForm).

    So π*_λ alone maximises the Lagrangian, with value Z_λ. Checked at π = `other` and π = π*_λ.
    """
    q = critic(problem, "soft")
    star, normaliser = closed_form(problem, q, lam)
    alpha = per_action(problem.alpha)
    checks = []
    for policy in (problem.other, star):
        gained = expect(policy, q - alpha * log(policy) + per_action(lam) * problem.log_beta)
        # KL from the logits: π*_λ may underflow to 0 where π does not.
        logits = (q + per_action(lam) * problem.log_beta - normaliser[..., None]) / alpha
        distance = expect(policy, log(policy) - logits)
        checks.append(identity(gained, normaliser - per_state(problem.alpha) * distance))
    return worst_of(checks)


def support_is_kept_literally(problem: Problem, lam: Array) -> Check:
    """exp((Q − Z_λ)/α) πβ^{λ/α} as printed, with 0⁰ = 1: its mass outside the support of πβ."""
    q = critic(problem, "soft")
    literal = _literal_closed_form(problem, q, lam)
    outside = np.where(problem.support, 0.0, literal).sum(axis=-1)
    return identity(np.zeros_like(outside), outside)


def support_is_kept(problem: Problem, lam: Array) -> Check:
    """The same with πβ^{λ/α} = 0 wherever πβ = 0, and as the limit of λ ↓ 0."""
    q = critic(problem, "soft")
    star = closed_form(problem, q, lam)[0]
    outside = np.where(problem.support, 0.0, star).sum(axis=-1)
    # Any λ > 0 excludes the unsupported by itself; a tiny one hardly moves the others.
    tiny = lam + 1e-12 * problem.alpha
    near = _literal_closed_form(problem, q, tiny)
    return worst_of([identity(np.zeros_like(outside), outside), identity(star, near)])


def _literal_closed_form(problem: Problem, q: Array, lam: Array) -> Array:
    """exp(Q/α) πβ^{λ/α}, normalised, with x⁰ = 1 for every x, 0 among them."""
    dial = per_action(lam)
    excluded = ~problem.support & (dial > 0)
    logits = (q + dial * problem.log_beta) / per_action(problem.alpha)
    logits = np.where(excluded, -np.inf, logits)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def normaliser_is_value(problem: Problem, lam: Array) -> Check:
    """Z_λ(s) = V(s), by which the appendix replaces it ("similarly within InAC")."""
    normaliser, value, _ = _normaliser_value_density(problem, lam)
    return identity(normaliser, value)


def normaliser_is_value_and_density(problem: Problem, lam: Array) -> Check:
    """Z_λ(s) = V(s) + λ g_s(λ) for V = E_{π*_λ}[Q − α log π*_λ]: equal to V at λ = 0 alone."""
    normaliser, value, density_ = _normaliser_value_density(problem, lam)
    return identity(normaliser, value + per_state(lam) * density_)


def _normaliser_value_density(problem: Problem, lam: Array) -> tuple[Array, Array, Array]:
    q = critic(problem, "soft")
    star, normaliser = closed_form(problem, q, lam)
    value = expect(star, q - per_action(problem.alpha) * log(star))
    return normaliser, value, density(problem, star)


# --- the weight and the projection --------------------------------------------------------------


def log_weight(problem: Problem, lam: Array, from_value: Array) -> Array:
    """(Q − from_value)/α + (λ−α)/α · log πβ; with V it is log w_λ of Eq-CCI-Obj."""
    q = critic(problem, "soft")
    alpha = per_action(problem.alpha)
    tilt = (per_action(lam) - alpha) / alpha * problem.log_beta
    return (q - from_value[..., None]) / alpha + tilt


def regression_recovers_the_optimum(problem: Problem, lam: Array) -> Check:
    """argmax_π E_{s~D, a~πβ}[w_λ log π] = π*_λ over all policies   (Eq-CCI-Obj).

    The maximiser of Σ_a m(a) log π(a) is m normalised, here m = πβ w_λ.
    """
    star, _ = closed_form(problem, critic(problem, "soft"), lam)
    weight = log_weight(problem, lam, problem.soft[1])
    return identity(star, regression_optimum(problem, weight))


def regression_optimum(problem: Problem, log_weights: Array) -> Array:
    """πβ w, normalised: the policy that regression on a ~ πβ with the weights w ends in."""
    logits = np.where(problem.support, problem.log_beta + log_weights, -np.inf)
    weighted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weighted / weighted.sum(axis=-1, keepdims=True)


def regression_projects_shared(problem: Problem, lam: Array) -> Check:
    """The same equality for policies that share parameters between states, as printed.

    The smallest such class: one distribution for all states. There E_D[KL(π*_λ‖π)] is least at
    the mean of π*_λ over D, and J^CCI greatest at the mean of πβ w_λ.
    """
    _, value, _ = _normaliser_value_density(problem, lam)
    return _shared_projection(problem, lam, value)


def regression_projects_shared_corrected(problem: Problem, lam: Array) -> Check:
    """With Z_λ(s) in the weight where the paper puts V(s), it holds for shared parameters too."""
    normaliser, _, _ = _normaliser_value_density(problem, lam)
    return _shared_projection(problem, lam, normaliser)


def _shared_projection(problem: Problem, lam: Array, used: Array) -> Check:
    star, _ = closed_form(problem, critic(problem, "soft"), lam)
    projected = (problem.occupancy[..., None] * star).sum(axis=1)
    logits = problem.log_beta + log_weight(problem, lam, used)
    logits = np.where(problem.support, logits, -np.inf)
    weighted = np.exp(logits - logits.max(axis=(-2, -1), keepdims=True))
    regressed = (problem.occupancy[..., None] * weighted).sum(axis=1)
    regressed = regressed / regressed.sum(axis=-1, keepdims=True)
    return identity(projected, regressed)


def table_of_regimes(problem: Problem, lam: Array) -> Check:
    """Each row of Table 1 is w_λ at its λ."""
    value = problem.soft[1]
    alpha = per_action(problem.alpha)
    scaled = (critic(problem, "soft") - value[..., None]) / alpha
    general = log_weight(problem, lam, value)
    dial = per_action(lam)
    printed = np.select(
        [dial == 0.0, dial < alpha, dial == alpha],
        [
            scaled - problem.log_beta,
            scaled - (alpha - dial) / alpha * problem.log_beta,
            scaled,
        ],
        scaled + (dial - alpha) / alpha * problem.log_beta,
    )
    return identity(general, printed)


def appendix_regime(problem: Problem, lam: Array) -> Check:
    """Regression with the appendix's weight for 0 < λ < α recovers π*_λ."""
    dial = np.minimum(lam, 0.5 * problem.alpha)
    star, _ = closed_form(problem, critic(problem, "soft"), dial)
    return identity(star, regression_optimum(problem, appendix_log_weight(problem, dial)))


def appendix_log_weight(problem: Problem, lam: Array) -> Array:
    """A/α + (α−λ)/α · log πβ, as Appendix A prints it for 0 < λ < α."""
    q, value = problem.soft
    alpha = per_action(problem.alpha)
    return (q - value[..., None]) / alpha + (alpha - per_action(lam)) / alpha * problem.log_beta


def sac_objective(problem: Problem, lam: Array) -> Check:
    """E_πθ[exp(A/α − log πθ)] ranks policies as −KL(πθ ‖ π*_0) does, as printed for SAC.

    It is Σ_a exp(A/α), whatever πθ: the drop from its "maximiser" to any policy is 0.
    """
    scaled, star, distance = _sac(problem)
    drop = printed_sac(scaled, star) - printed_sac(scaled, problem.other)
    return identity(distance, drop)


def printed_sac(scaled: Array, policy: Array) -> Array:
    """E_π[exp(A/α − log π)] for A/α = `scaled`, in every state."""
    return expect(policy, np.exp(scaled - log(policy)))


def sac_objective_corrected(problem: Problem, lam: Array) -> Check:
    """E_πθ[A/α − log πθ], without the exponential, falls by KL(πθ ‖ π*_0) from its maximum."""
    scaled, star, distance = _sac(problem)
    drop = expect(star, scaled - log(star))
    drop -= expect(problem.other, scaled - log(problem.other))
    return identity(distance, drop)


def _sac(problem: Problem) -> tuple[Array, Array, Array]:
    zero = np.zeros(len(problem))
    q = critic(problem, "soft")
    star, normaliser = closed_form(problem, q, zero)
    # A up to a constant per state, chosen so that no exponential overflows.
    scaled = (q - normaliser[..., None]) / per_action(problem.alpha)
    return scaled, star, expect(problem.other, log(problem.other) - scaled)
