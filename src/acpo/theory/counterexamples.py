"""The smallest problems found on which a statement fails as printed.

One state, two actions, γ = 0 and α = 1 unless it says otherwise: the soft and the plain Q are then
the reward itself, whatever the policy, so neither the soft nor the plain Q escapes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from acpo.theory.mdp import Problem, bandit, single


class Counterexample(NamedTuple):
    problem: Problem
    lam: float
    says: str
    """The numbers on both sides, worked out by hand."""


_DIFFERENT_STATES = single(
    np.broadcast_to(np.eye(2)[:, None], (2, 2, 2)),
    np.zeros((2, 2)),
    [[0.5, 0.5], [0.9, 0.1]],
    gamma=0.0,
    start=[0.5, 0.5],
)
_TWO_TO_ONE = Counterexample(
    bandit([0, 0], [0.75, 0.25]),
    2.0,
    "r = 0, πβ = (3/4, 1/4), λ = 2, πθ = πβ: π*_λ = (0.9, 0.1) does not maximise F_λ, "
    "δ^sub = −KL(π*_λ‖πβ) = −0.072, and the bound reads J(πβ) ≥ J(πβ) + 0.072",
)

COUNTEREXAMPLES: dict[str, Counterexample] = {
    "support": Counterexample(
        bandit([0, 0], [1, 0]),
        0.0,
        "r = 0, πβ = (1, 0), λ = 0: as printed π*_0 = (1/2, 1/2), because 0⁰ = 1; half of it lies "
        "outside the support",
    ),
    "normaliser": Counterexample(
        bandit([0, 0], [0.5, 0.5]),
        1.0,
        "r = 0, πβ = (1/2, 1/2), λ = α: Z_λ = log 1 = 0 but V = log 2 = 0.693",
    ),
    "shared": Counterexample(
        _DIFFERENT_STATES,
        1.0,
        "two states met equally often, r = 0, πβ = (1/2, 1/2) and (0.9, 0.1), λ = α, one action "
        "distribution for both: the projection of π*_λ gives the first action 0.700, the "
        "regression 0.736",
    ),
    "appendix_regime": Counterexample(
        bandit([0, 0], [0.8, 0.2]),
        0.5,
        "r = 0, πβ = (0.8, 0.2), λ = α/2: the regression's optimum is (8/9, 1/9) with the printed "
        "sign and (2/3, 1/3) = π*_λ with the other",
    ),
    "sac": Counterexample(
        bandit([0, 0], [0.5, 0.5], other=[0.9, 0.1]),
        0.0,
        "r = 0, πβ = (1/2, 1/2), so A = −log 2: the objective is Σ_a exp(A/α), the same for every "
        "πθ; here 1",
    ),
    "ratio": Counterexample(
        bandit([1, -1], [0.9999, 0.0001], other=[0.5, 0.5]),
        1.0,
        "r = (1, −1), πβ = (0.9999, 0.0001), π = (1/2, 1/2), δ = 0.01, C_max = 9.21: A = 0.307 at "
        "the first action and |A/log πβ| = 3068, above the printed bound of 2022",
    ),
    "pointwise": Counterexample(
        bandit([np.log(4), -np.log(4)], [0.5, 0.5]),
        1.0,
        "r = (log 4, −log 4), πβ = (1/2, 1/2), λ = α = 1: at the first action A = log 2 and "
        "α + A/log πβ = 0, so λ is any number of times as large, yet (λ−α) log πβ = 0",
    ),
    "wbc": Counterexample(
        bandit([1, 0], [0.5, 0.5]),
        1.0,
        "r = (1, 0), πβ = (1/2, 1/2): π*_λ = (0.731, 0.269) at every λ, however large; "
        "πβ^{λ/α} is (1/2, 1/2)",
    ),
    "lemma_anywhere": Counterexample(
        bandit([0, 0], [1, 0]),
        1.0,
        "r = 0, πβ = (1, 0), π = (1/2, 1/2): the left side is log 2, the right side ∞ − ∞",
    ),
    "gap": _TWO_TO_ONE,
    "gap_soft": _TWO_TO_ONE,
    "theorem_2": _TWO_TO_ONE,
    "theorem_2_soft": _TWO_TO_ONE,
}
