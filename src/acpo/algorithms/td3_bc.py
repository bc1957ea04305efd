"""TD3+BC: TD3 with a term of behaviour cloning (Fujimoto and Gu, 2021).

The least that makes an online method work offline: TD3's policy gradient, scaled to the size of Q,
plus the squared distance to the data's actions, on normalised observations. The critics are
learned in td3.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from acpo.algorithms.base import NOT_NEGATIVE, About, Batch, Limit, Metrics
from acpo.algorithms.td3 import TD3, TD3State
from acpo.networks import MLP, TwinQ


@dataclass(frozen=True)
class TD3BC(TD3):
    """max_θ E_D[λ Q_1(s, π(s)) − (π(s) − a)²], λ = α / E_D|Q_1(s, π(s))|."""

    about: ClassVar[About] = About(
        paper="A Minimalist Approach to Offline RL (Fujimoto & Gu)",
        year=2021,
        family="weighted BC",
        constrains="π(s) to the data's action, by squared distance",
        networks="actor, two Q",
        source="sfujim/TD3_BC; AntMaze: CORL; NeoRL2: its own benchmark; Kitchen as Gym-MuJoCo",
    )
    # The authors ran Gym-MuJoCo only. AntMaze is CORL's (configs/offline/td3_bc/antmaze, where
    # normalize_reward subtracts 1). NeoRL2 is the best of polixir/NeoRL2's grid over α and the
    # noise, by the mean of its three seeds (benchmark/results/*-td3bc/log.csv), which gives the
    # scores that its paper prints; its actor has a third layer, and its critics see raw
    # observations, which were not taken. No source was found for Kitchen.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "antmaze": {"relabel": "reward - 1"},
        "Pipeline": {"alpha": 0.2, "policy_noise": 0.5},
        "Simglucose": {"alpha": 0.2, "policy_noise": 2.5},
        "RocketRecovery": {"alpha": 0.2, "policy_noise": 1.5},
        "RandomFrictionHopper": {"alpha": 0.2, "policy_noise": 0.5},
        "DMSD": {"alpha": 0.2, "policy_noise": 0.5},
        "Fusion": {"alpha": 0.2, "policy_noise": 1.5},
        "SafetyHalfCheetah": {"alpha": 0.05, "policy_noise": 2.5},
    }
    limits: ClassVar[dict[str, Limit]] = {**TD3.limits, "alpha": NOT_NEGATIVE}

    alpha: float = 2.5
    """α, weight of Q against cloning; 0 is behaviour cloning."""

    def policy_loss(self, chosen: Array, actions: Array, q: Array) -> tuple[Array, Metrics]:
        """L_π = −λ Q_1(s, π(s)) + (π(s) − a)², λ = α / mean|Q_1| a constant to the gradient.

        The distance is a mean over rows and over an action's components.
        """
        lam = self.alpha / jax.lax.stop_gradient(jnp.abs(q).mean())
        loss = jnp.mean((chosen - actions) ** 2) - lam * q.mean()
        return loss, {"policy/loss": loss, "policy/lambda": lam}

    def policy_loss_of(
        self, actor: MLP, critic: TwinQ, batch: Batch, key: Array
    ) -> tuple[Array, Metrics]:
        chosen = self.act(actor, batch.observations, key)
        q = critic.q1(jnp.concatenate([batch.observations, chosen], axis=-1))[..., 0]
        return self.policy_loss(chosen, batch.actions, q)

    def diagnose(self, state: TD3State, batch: Batch, key: Array) -> Metrics:
        _, metrics = self.policy_loss_of(*state.nets, batch, key)
        return {**super().diagnose(state, batch, key), **metrics}
