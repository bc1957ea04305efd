"""SAC's policy and temperature (Haarnoja et al., 2018): what CQL, MCQ and EDAC share.

    L_π = E_{a~π}[α log π(a|s) − min_i Q_i(s,a)],   L_α = −log α (E[log π(a|s)] − a_dim)

A method says how its critics learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from acpo.algorithms.base import Batch, Method, Metrics, Schedule, Spec, adam_step, soft_update
from acpo.networks import MLP, Head


class SoftState(NamedTuple):
    trained: Any
    """What the optimiser moves, in a tuple of the method's own: actor, critic, log_alpha, …"""
    target: Any
    """The target critics."""
    optimiser: Any
    """Adam's state of each part."""
    schedule: Schedule

    @classmethod
    def start(cls, trained: Any, spec: Spec) -> SoftState:
        parts = (optax.scale_by_adam().init(part) for part in trained)
        optimiser = type(trained)(*parts)
        return cls(trained, trained.critic, optimiser, Schedule.start(spec.total_steps))

    def stepped(self, gradient: Any, rates: tuple[float, ...], tau: float) -> SoftState:
        """An Adam step on each part at its own rate, then a soft target update."""
        parts = zip(self.trained, gradient, self.optimiser, rates, strict=True)
        new = zip(*(adam_step(*part) for part in parts), strict=True)
        trained, optimiser = (type(self.trained)(*part) for part in new)
        target = soft_update(self.target, trained.critic, tau)
        return SoftState(trained, target, optimiser, self.schedule.next())


@dataclass(frozen=True)
class Soft(Method):
    """A squashed Gaussian policy with an entropy that is held at −a_dim."""

    @property
    def head(self) -> str:
        return "squashed"

    @property
    def policy_head(self) -> Head:
        return Head("squashed")

    def actor(self, state: SoftState) -> MLP:
        return state.trained.actor

    def policy_loss(self, log_pi: Array, log_alpha: Array, worth: Array) -> tuple[Array, Metrics]:
        """E_{a~π}[α log π(a|s) − worth], worth = min_i Q_i(s,a)."""
        loss = jnp.mean(jnp.exp(jax.lax.stop_gradient(log_alpha)) * log_pi - worth)
        return loss, {"policy/loss": loss, "policy/entropy": -log_pi.mean()}

    def temperature_loss(
        self, log_alpha: Array, log_pi: Array, action_dim: int
    ) -> tuple[Array, Metrics]:
        """−log α (E[log π(a|s)] − a_dim): α holds π's entropy at −a_dim."""
        loss = -log_alpha * (jax.lax.stop_gradient(log_pi).mean() - action_dim)
        return loss, {"policy/alpha": jnp.exp(log_alpha)}

    def compared(
        self, values: Callable[[Array, Array], Array], actor: MLP, batch: Batch, key: Array
    ) -> tuple[Array, Array, Array, Metrics]:
        """[critics, rows] Q at the data's, the policy's and random actions; and what to log."""
        key_noise, key_uniform = jax.random.split(key)
        policy = self.policy_head.parameters(actor(batch.observations))
        noise = jax.random.normal(key_noise, batch.actions.shape)
        uniform = jax.random.uniform(key_uniform, batch.actions.shape, minval=-1.0)
        actions = self.policy_head.sample(policy, noise)
        q, policy_q, random_q = (
            values(batch.observations, a) for a in (batch.actions, actions, uniform)
        )
        advantage = policy_q.min(axis=0) - q.min(axis=0)
        return (
            q,
            policy_q,
            random_q,
            {
                "advantage/mean": advantage.mean(),
                "advantage/std": advantage.std(),
                "critic/q_min": q.min(),
                "critic/q_max": q.max(),
                "policy/log_std": policy.log_std.mean(),
                "policy/log_prob_data": self.policy_head.log_prob(policy, batch.actions).mean(),
            },
        )


def repeated(observations: Array, actions: Array) -> Array:
    """The states once for every set of actions [k, rows, a_dim]."""
    return jnp.broadcast_to(observations, (*actions.shape[:-1], observations.shape[-1]))
