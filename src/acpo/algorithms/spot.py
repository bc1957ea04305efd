"""SPOT: Supported Policy Optimization (Wu et al., 2022), its offline part.

TD3 with one more term in the policy's loss: the negative log-density, by a conditional variational
auto-encoder of the data, of the action that the policy takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.algorithms.base import ABOVE_0, NOT_NEGATIVE, About, Batch, Limit, Metrics, Spec
from acpo.algorithms.td3 import TD3, Nets, TD3State
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.density import Density, Exact
from acpo.behavior.models import make_density
from acpo.networks import MLP, TwinQ


@dataclass(frozen=True)
class SPOT(TD3):
    """max_θ E_D[Q_1(s, πθ(s)) / mean|Q_1|] − λ E_D[−c log πβ(πθ(s)|s)], Q by TD3.

    c is β/(2 a_dim) with the CVAE's ELBO and 1 with any other density. The authors' penalty is
    the auto-encoder's own loss, error² + β KL, each averaged over its dimensions: c times −ELBO
    but for a constant. So λ means what it means in their code.
    """

    about: ClassVar[About] = About(
        paper="Supported Policy Optimization for Offline RL (Wu et al.)",
        year=2022,
        family="support",
        constrains="πθ(s) to where log πβ is high, by the penalty λ",
        networks="actor, two Q, πβ (CVAE)",
        source="thuml/SPOT, configs/offline, train_vae.py",
    )
    # One file per task; the authors ran neither Kitchen nor NeoRL2.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "antmaze": {
            "lam": 0.25,
            "actor_learning_rate": 1e-4,
            "dropout": 0.0,
            "actor_last_layer": 1e-3,
            "critic_last_layer": 3e-3,
            "normalize_observations": False,
            "relabel": "reward - 1",
        },
        "antmaze-medium-play-v2": {"lam": 0.05},
        "antmaze-medium-diverse-v2": {"lam": 0.025},
        "antmaze-large-play-v2": {"lam": 0.025},
        "antmaze-large-diverse-v2": {"lam": 0.025},
        "halfcheetah-medium-v2": {"lam": 0.05},
        "halfcheetah-medium-replay-v2": {"lam": 0.05},
        "halfcheetah-medium-expert-v2": {"lam": 1.0},
        "hopper-medium-expert-v2": {"lam": 0.2},
        "walker2d-medium-v2": {"lam": 0.2},
        "walker2d-medium-replay-v2": {"lam": 0.2},
        "walker2d-medium-expert-v2": {"lam": 0.5},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **TD3.limits,
        "lam": NOT_NEGATIVE,
        "actor_last_layer": ABOVE_0,
        "critic_last_layer": ABOVE_0,
    }
    needs_density: ClassVar[bool] = True

    lam: float = 0.1
    """λ, the price of leaving the support (the authors' for hopper-medium)."""
    dropout: float = 0.1
    """Share of the actor's hidden units that are dropped in training, in its target too."""
    actor_last_layer: float | None = None
    """Weights of the actor's last layer start within ± this. None: as other layers."""
    critic_last_layer: float | None = None
    """The same for the critics."""
    behavior: BehaviorConfig = field(
        default_factory=lambda: BehaviorConfig(
            model="cvae-elbo", beta=0.5, latents=1, every=1, max_steps=100_000
        )
    )
    """Which πβ is fitted, and how. The authors take all of 100,000 steps, as --behavior.patience 0
    does, and hold out no rows."""

    # --- pieces ---------------------------------------------------------------------------------

    @property
    def density(self) -> Density:
        return make_density(self.behavior, self.behavior_head(self.head))

    def create(self, key: Array, spec: Spec) -> Nets:
        actor, critic = super().create(key, spec)
        q1, q2 = (_rescaled(q, self.critic_last_layer) for q in (critic.q1, critic.q2))
        return Nets(_rescaled(actor, self.actor_last_layer), TwinQ(q1, q2))

    def behavior_log_prob(self, batch: Batch, actions: Array, key: Array) -> Array:
        """log πβ(a|s), a function of the actions that a gradient can follow; as in ACPO."""
        density = self.density
        if isinstance(density, Exact):
            return density.log_prob_given(batch.behavior, actions)
        some = slice(None, None, int(self.behavior.own("every")))
        return density.log_prob(batch.behavior, batch.observations[some], actions[some], key)

    def scale(self, action_dim: int) -> float:
        """c, which makes λ the authors'."""
        if self.behavior.model != "cvae-elbo":
            return 1.0
        return self.behavior.own("beta") / (2 * action_dim)

    # --- losses ---------------------------------------------------------------------------------

    def policy_loss(self, q: Array, log_beta: Array, action_dim: int) -> tuple[Array, Metrics]:
        """L_π = −Q_1(s, π(s)) / mean|Q_1| − λ c log πβ(π(s)|s), mean|Q_1| being a constant."""
        size = jax.lax.stop_gradient(jnp.abs(q).mean())
        penalty = -self.scale(action_dim) * log_beta.mean()
        loss = self.lam * penalty - q.mean() / size
        return loss, {"policy/loss": loss, "policy/penalty": penalty}

    def policy_loss_of(
        self, actor: MLP, critic: TwinQ, batch: Batch, key: Array
    ) -> tuple[Array, Metrics]:
        key_actor, key_density = jax.random.split(key)
        chosen = self.act(actor, batch.observations, key_actor)
        q = critic.q1(jnp.concatenate([batch.observations, chosen], axis=-1))[..., 0]
        log_beta = self.behavior_log_prob(batch, chosen, key_density)
        return self.policy_loss(q, log_beta, chosen.shape[-1])

    def diagnose(self, state: TD3State, batch: Batch, key: Array) -> Metrics:
        """How likely the actor's actions are beside the data's, besides what TD3 tells."""
        actor, critic = state.nets
        chosen = self.act(actor, batch.observations)
        log_beta = self.behavior_log_prob(batch, chosen, key)
        q = critic(batch.observations, chosen)[0]
        _, metrics = self.policy_loss(q, log_beta, chosen.shape[-1])
        for percent in (10, 50, 90):
            for where, values in (("data", batch.log_beta), ("policy", log_beta)):
                metrics[f"behavior/log_beta_{where}_q{percent}"] = jnp.percentile(values, percent)
        return {**super().diagnose(state, batch, key), **metrics}


def _rescaled(network: MLP, bound: float | None) -> MLP:
    """The network with its last layer uniform within ±bound; it was within ±1/√fan_in."""
    if bound is None:
        return network
    factor = bound * np.sqrt(len(network.weights[-1]))
    *weights, last_weight = network.weights
    *biases, last_bias = network.biases
    return MLP((*weights, last_weight * factor), (*biases, last_bias * factor))
