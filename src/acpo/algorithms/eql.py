"""EQL: Exponential Q-Learning, by implicit value regularisation (Xu et al., 2023).

The behaviour-regularised problem max_π E[Q] − α D_KL(π ‖ πβ) has the solution
π* = πβ exp((Q − V)/α), V = α log E_β[exp(Q/α)]. V is fitted by a loss that this V minimises, and π*
by regression. Everything but that is in in_sample.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from acpo.algorithms.base import ABOVE_0, NOT_NEGATIVE, About, Limit, Metrics
from acpo.algorithms.in_sample import InSample

# Beyond this exponent Q' no longer pulls on V, as in the authors' code: one outlier in a batch
# would make up the whole gradient.
EXPONENT_MAX = 5.0


@dataclass(frozen=True)
class EQL(InSample):
    """max_θ E_D[exp(κ (Q' − V)/α) log πθ(a|s)], V = argmin_V E_D[exp((Q' − V)/α) + V/α]."""

    about: ClassVar[About] = About(
        paper="Offline RL with No OOD Actions (Xu et al.)",
        year=2023,
        family="density",
        constrains="πθ to πβ by α KL in value and weight; V and Q to the data's actions",
        networks="actor, V, two Q",
        source="ryanxhr/IVR, run_*.sh and configs/; NeoRL2 was not run",
    )
    # α from run_{mujoco,antmaze,kitchen}.sh, the rest from configs/. AntMaze's dropout of 0.5 in V
    # is left out: the authors' V is always called in evaluation mode, where it does nothing.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "antmaze": {
            "alpha": 0.5,
            "learning_rate": 2e-4,
            "reward_scale": 1.0,
            "relabel": "reward - 1",
        },
        "antmaze-umaze-diverse-v2": {"alpha": 5.0},
        "kitchen": {"dropout": 0.1, "reward_scale": 1.0},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **InSample.limits,
        "alpha": ABOVE_0,
        "sharpness": NOT_NEGATIVE,
    }

    alpha: float = 2.0
    """α, the price of D_KL(π ‖ πβ)."""
    sharpness: float = 10.0
    """κ, factor on the weight's exponent: 1 is the paper's closed form, 10 the authors' code."""
    layer_norm: bool = True
    """Layer normalisation in the hidden layers of V."""

    def value_loss(self, v: Array, q: Array) -> tuple[Array, Metrics]:
        """L_V = e^−m [exp((Q' − V(s))/α) + V(s)/α], m the batch's largest exponent.

        The factor e^−m, a constant to the gradient, keeps the exponentials in range and leaves the
        minimiser where it is; m is kept at −1 or above, so that the factor is at most e.
        """
        exponent = jnp.minimum((jax.lax.stop_gradient(q) - v) / self.alpha, EXPONENT_MAX)
        largest = jax.lax.stop_gradient(jnp.maximum(exponent.max(), -1.0))
        loss = jnp.mean(jnp.exp(exponent - largest) + jnp.exp(-largest) * v / self.alpha)
        return loss, {"value/loss": loss, "value/v": v.mean()}

    def log_weight(self, advantage: Array) -> Array:
        """log w = κ A / α: log of π*/πβ for κ = 1."""
        return self.sharpness * advantage / self.alpha
