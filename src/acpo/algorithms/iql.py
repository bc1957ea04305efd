"""IQL: Implicit Q-Learning (Kostrikov, Nair and Levine, 2021).

V is an upper expectile of Q over the data's actions, which stands for the best of them without
ever asking Q about another. Everything but that, and the weight, is in in_sample.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import Array

from acpo.algorithms.base import INSIDE, NOT_NEGATIVE, About, Limit, Metrics, expectile_loss
from acpo.algorithms.in_sample import InSample


@dataclass(frozen=True)
class IQL(InSample):
    """max_θ E_D[exp(β (Q' − V)) log πθ(a|s)], V = argmin_V E_D[|τ − 1(Q' < V)| (Q' − V)²]."""

    about: ClassVar[About] = About(
        paper="Offline RL with Implicit Q-Learning (Kostrikov et al.)",
        year=2021,
        family="density",
        constrains="πθ to πβ by the weight exp(βA); V and Q to the data's actions",
        networks="actor, V, two Q",
        source="ikostrikov/implicit_q_learning, configs/; NeoRL2 was not run",
    )
    # configs/{mujoco,antmaze,kitchen}_config.py and train_offline.py, which scales rewards in
    # Gym-MuJoCo only.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "antmaze": {
            "expectile": 0.9,
            "beta": 10.0,
            "reward_scale": 1.0,
            "relabel": "reward - 1",
        },
        "kitchen": {"beta": 0.5, "dropout": 0.1, "reward_scale": 1.0},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **InSample.limits,
        "expectile": INSIDE,
        "beta": NOT_NEGATIVE,
    }

    expectile: float = 0.7
    """τ of the paper: ½ makes V the mean of Q' over the data's actions, towards 1 its maximum."""
    beta: float = 3.0
    """β, inverse temperature of the weight; 0 is behaviour cloning."""

    def value_loss(self, v: Array, q: Array) -> tuple[Array, Metrics]:
        """L_V = |τ − 1(Q' < V)| (Q' − V(s))²   (Eq. 5)."""
        loss = expectile_loss(jax.lax.stop_gradient(q) - v, self.expectile)
        return loss, {"value/loss": loss, "value/v": v.mean()}

    def log_weight(self, advantage: Array) -> Array:
        """log w = β A   (Eq. 7)."""
        return self.beta * advantage
