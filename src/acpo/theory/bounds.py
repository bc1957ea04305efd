"""The lower bounds of Theorems 1 and 2 on J(π) − J(πβ), each of their terms apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from acpo.theory.mdp import Array, Problem, expect
from acpo.theory.policies import Reading, density, divergence, total_variation


class Loss(NamedTuple):
    """What a bound allows J(π) to fall below J(πβ), (N,) each."""

    density: Array
    """2B|λ−α| / (1−γ) · Δ_TV."""
    shaping: Array
    """4αB / (1−γ)² · Δ_TV, the price of Ã instead of A."""
    shift: Array
    """2γ (ε_β(π) + α κ_β(π)) / (1−γ)² · Δ_TV, the states that πβ does not visit as often."""
    gap: Array
    """δ^sub(λ) / (1−γ), Theorem 2 only."""

    @property
    def total(self) -> Array:
        return self.density + self.shaping + self.shift + self.gap


def mean_total_variation(problem: Problem, policy: Array) -> Array:
    """Δ_TV(π, πβ; d_πβ), (N,)."""
    return (problem.occupancy * total_variation(policy, problem.behavior)).sum(axis=-1)


def loss(problem: Problem, policy: Array, lam: Array, gap: Array | None = None) -> Loss:
    """The terms of Eq-Opt-Policy-LB, and with the gap δ^sub those of Eq-Para-Policy-LB."""
    horizon = 1.0 / (1.0 - problem.gamma)
    bound, alpha = problem.beta_bound, problem.alpha
    distance = mean_total_variation(problem, policy)
    shaped, values = problem.shaped
    epsilon = np.abs(expect(policy, shaped - values[..., None])).max(axis=-1)
    kappa = divergence(policy, problem.behavior).max(axis=-1)
    return Loss(
        density=2.0 * bound * np.abs(lam - alpha) * horizon * distance,
        shaping=4.0 * alpha * bound * horizon**2 * distance,
        shift=2.0 * problem.gamma * (epsilon + alpha * kappa) * horizon**2 * distance,
        gap=np.zeros(len(problem)) if gap is None else gap * horizon,
    )


def advantage(problem: Problem, reading: Reading) -> Array:
    """A^πβ of the reward (plain), of Section 3.1 (soft), or Ã of the shaped reward, (N, S, A)."""
    readings = {"plain": problem.plain, "soft": problem.soft, "shaped": problem.shaped}
    q, values = readings[reading]
    return q - values[..., None]


def surrogate(problem: Problem, policy: Array, lam: Array, reading: Reading) -> Array:
    """F_λ(π) = E_{d_πβ}[E_π A − α KL(π‖πβ) + (λ−α) E_π log πβ], (N,).

    Theorem 2 prints it with Ã (shaped), the proof of Theorem 1 with A (plain).
    """
    per_state = (
        expect(policy, advantage(problem, reading))
        - problem.alpha[:, None] * divergence(policy, problem.behavior)
        + (lam - problem.alpha)[:, None] * density(problem, policy)
    )
    return (problem.occupancy * per_state).sum(axis=-1)
