"""Soft actor-critic: online learning in a Gymnasium task (Haarnoja et al., 2018).

The other extreme of the framework (paper, end of the CCI appendix): λ = 0 and the projection
D_KL(πθ ‖ π*_λ) instead of D_KL(π*_λ ‖ πθ), so actions come from πθ and not from data. Here it
makes datasets: `acpo collect` trains it and records what it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from acpo.algorithms.base import Batch, Metrics, Spec, soft_update
from acpo.networks import MLP, Gaussian, Head, TwinQ


class SACState(NamedTuple):
    actor: MLP
    critic: TwinQ
    target: TwinQ
    log_alpha: Array
    optimiser: optax.OptState


@dataclass(frozen=True)
class SAC:
    """max_π E[Σ γ^t (r − α log π)], with α tuned to hold the entropy at −a_dim."""

    gamma: float = 0.99  # γ, discount
    tau: float = 5e-3  # τ, target update rate
    learning_rate: float = 3e-4  # actor, critics and temperature
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    @property
    def head(self) -> Head:
        return Head("squashed", log_std_min=-20.0)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def init(self, key: Array, spec: Spec) -> SACState:
        key_actor, key_critic = jax.random.split(key)
        sizes = (spec.observation_dim + spec.action_dim, *self.hidden, 1)
        actor = MLP.create(key_actor, (spec.observation_dim, *self.hidden, 2 * spec.action_dim))
        critic = TwinQ.create(key_critic, sizes)
        log_alpha = jnp.zeros(())
        return SACState(
            actor, critic, critic, log_alpha, self._optimiser.init((actor, critic, log_alpha))
        )

    def policy(self, actor: MLP, observations: Array) -> Gaussian:
        return self.head.parameters(actor(observations))

    def critic_loss(
        self, critic: TwinQ, state: SACState, batch: Batch, noise: Array
    ) -> tuple[Array, Metrics]:
        """½ (Q(s,a) − [r + γ(1 − terminal)(min Q'(s',a') − α log π(a'|s'))])², a' ~ π."""
        next_actions, next_log_pi = self.head.sample_with_log_prob(
            self.policy(state.actor, batch.next_observations), noise
        )
        next_q = state.target(batch.next_observations, next_actions).min(axis=0)
        next_v = next_q - jnp.exp(state.log_alpha) * next_log_pi
        target = batch.rewards + self.gamma * (1.0 - batch.terminals) * next_v
        q = critic(batch.observations, batch.actions)
        loss = 0.5 * jnp.mean(jnp.sum((q - jax.lax.stop_gradient(target)) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def actor_loss(
        self, actor: MLP, state: SACState, batch: Batch, noise: Array
    ) -> tuple[Array, Metrics]:
        """E_{a~πθ}[α log πθ(a|s) − min Q(s,a)], gradients through the sampled action."""
        actions, log_pi = self.head.sample_with_log_prob(
            self.policy(actor, batch.observations), noise
        )
        q = state.critic(batch.observations, actions).min(axis=0)
        loss = jnp.mean(jnp.exp(state.log_alpha) * log_pi - q)
        return loss, {"actor/loss": loss, "actor/entropy": -log_pi.mean()}

    def update(self, state: SACState, batch: Batch, key: Array) -> tuple[SACState, Metrics]:
        """One step on critics, actor and temperature; all gradients at the same point."""
        key_critic, key_actor = jax.random.split(key)
        shape = batch.actions.shape
        noise_critic = jax.random.normal(key_critic, shape)
        noise_actor = jax.random.normal(key_actor, shape)

        critic_grad, critic_metrics = jax.grad(self.critic_loss, has_aux=True)(
            state.critic, state, batch, noise_critic
        )
        actor_grad, actor_metrics = jax.grad(self.actor_loss, has_aux=True)(
            state.actor, state, batch, noise_actor
        )
        # d/d(log α) of −α (log π + target entropy), target entropy = −a_dim
        alpha = jnp.exp(state.log_alpha)
        alpha_grad = alpha * (actor_metrics["actor/entropy"] + shape[-1])

        trained = (state.actor, state.critic, state.log_alpha)
        updates, optimiser = self._optimiser.update(
            (actor_grad, critic_grad, alpha_grad), state.optimiser, trained
        )
        actor, critic, log_alpha = optax.apply_updates(trained, updates)
        target = soft_update(state.target, critic, self.tau)
        metrics = {**critic_metrics, **actor_metrics, "alpha": alpha}
        return SACState(actor, critic, target, log_alpha, optimiser), metrics

    def act(self, state: SACState, observations: Array) -> Array:
        """The deterministic action tanh(mean)."""
        return self.head.mode(self.policy(state.actor, observations))
