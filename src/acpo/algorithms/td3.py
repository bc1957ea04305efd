"""TD3's learning (Fujimoto et al., 2018): what TD3+BC and SPOT share, and where they differ.

Two critics regress on the smaller target of a smoothed target action, and a deterministic policy
climbs the first of them at every other update:

    L_Q = E_D[Σ_i (r + γ (1 − terminal) min_j Q'_j(s', clip(π'(s') + ε)) − Q_i(s,a))²]

A method says what the policy minimises (`policy_loss_of`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from acpo.algorithms.base import (
    ABOVE_0,
    COUNT,
    NOT_NEGATIVE,
    SHARE,
    Batch,
    Limit,
    Method,
    Metrics,
    Schedule,
    Spec,
    adam_step,
    bellman_target,
    soft_update,
)
from acpo.networks import MLP, TwinQ


class Nets(NamedTuple):
    actor: MLP
    critic: TwinQ


class TD3State(NamedTuple):
    nets: Nets
    target: Nets
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    schedule: Schedule


Delayed = tuple[MLP, Nets, optax.OptState]


@dataclass(frozen=True)
class TD3(Method):
    """Clipped double Q-learning with a deterministic, delayed policy."""

    limits: ClassVar[dict[str, Limit]] = {
        **Method.limits,
        "policy_noise": NOT_NEGATIVE,
        "noise_clip": NOT_NEGATIVE,
        "policy_freq": COUNT,
        "dropout": SHARE,
        "actor_learning_rate": ABOVE_0,
    }
    normalize_observations: bool = True
    """Z-score observations with the data's mean and deviation; the policy carries both."""
    actor_learning_rate: float | None = None
    """Adam's step size for the actor. None: that of the critics."""
    policy_noise: float = 0.2
    """Deviation of the noise on the target policy's action …"""
    noise_clip: float = 0.5
    """… and where it is cut."""
    policy_freq: int = 2
    """Updates of the critics per update of actor and targets."""
    dropout: float = 0.0
    """Share of the actor's hidden units that are dropped in training, in its target too."""

    # --- pieces ---------------------------------------------------------------------------------

    def create(self, key: Array, spec: Spec) -> Nets:
        """Untrained networks."""
        key_actor, key_critic = jax.random.split(key)
        s, a = spec.observation_dim, spec.action_dim
        return Nets(
            actor=MLP.create(key_actor, (s, *self.hidden, a)),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1)),
        )

    def init(self, key: Array, spec: Spec) -> TD3State:
        nets = self.create(key, spec)
        return TD3State(
            nets=nets,
            target=nets,
            actor_optimiser=optax.scale_by_adam().init(nets.actor),
            critic_optimiser=optax.scale_by_adam().init(nets.critic),
            schedule=Schedule.start(spec.total_steps),
        )

    def actor(self, state: TD3State) -> MLP:
        return state.nets.actor

    def act(self, actor: MLP, observations: Array, key: Array | None = None) -> Array:
        """π(s); given a key with dropout, as in training."""
        return jnp.tanh(actor(observations, self.dropout, key))

    # --- losses ---------------------------------------------------------------------------------

    def critic_loss(
        self, q: Array, rewards: Array, terminals: Array, next_q: Array
    ) -> tuple[Array, Metrics]:
        """L_Q = Σ_i (r + γ (1 − terminal) min_j Q'_j(s', a') − Q_i(s,a))²."""
        target = bellman_target(rewards, terminals, next_q.min(axis=0), self.gamma)
        loss = jnp.mean(jnp.sum((target - q) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    @abstractmethod
    def policy_loss_of(
        self, actor: MLP, critic: TwinQ, batch: Batch, key: Array
    ) -> tuple[Array, Metrics]:
        """What the actor descends, the critics at rest."""

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: TD3State, batch: Batch, key: Array) -> tuple[TD3State, Metrics]:
        """One gradient step on the critics; at every `policy_freq`-th, with the new critics, one
        on the actor, and the soft updates of both targets. The authors' order.

        The policy's metrics are in `diagnose`, for most updates would have none.
        """
        actor, critic = state.nets
        key_noise, key_target, key_policy = jax.random.split(key, 3)
        noise = self.policy_noise * jax.random.normal(key_noise, batch.actions.shape)
        noise = jnp.clip(noise, -self.noise_clip, self.noise_clip)
        next_actions = self.act(state.target.actor, batch.next_observations, key_target) + noise
        next_q = state.target.critic(batch.next_observations, jnp.clip(next_actions, -1.0, 1.0))

        def critic_loss(critic: TwinQ) -> tuple[Array, Metrics]:
            q = critic(batch.observations, batch.actions)
            return self.critic_loss(q, batch.rewards, batch.terminals, next_q)

        gradient, metrics = jax.grad(critic_loss, has_aux=True)(critic)
        rate = jnp.float32(self.learning_rate)
        critic, critic_optimiser = adam_step(critic, gradient, state.critic_optimiser, rate)

        def improve(delayed: Delayed) -> Delayed:
            actor, target, optimiser = delayed
            gradient, _ = jax.grad(self.policy_loss_of, has_aux=True)(
                actor, critic, batch, key_policy
            )
            rate = jnp.float32(self.actor_learning_rate or self.learning_rate)
            actor, optimiser = adam_step(actor, gradient, optimiser, rate)
            return actor, soft_update(target, Nets(actor, critic), self.tau), optimiser

        actor, target, actor_optimiser = jax.lax.cond(
            (state.schedule.step + 1) % self.policy_freq == 0,
            improve,
            lambda delayed: delayed,
            (actor, state.target, state.actor_optimiser),
        )
        return TD3State(
            nets=Nets(actor, critic),
            target=target,
            actor_optimiser=actor_optimiser,
            critic_optimiser=critic_optimiser,
            schedule=state.schedule.next(),
        ), metrics

    def diagnose(self, state: TD3State, batch: Batch, key: Array) -> Metrics:
        """How far the actor is from the data, and whether Q is plausible."""
        actor, critic = state.nets
        chosen = self.act(actor, batch.observations)
        q = critic(batch.observations, batch.actions)
        advantage = critic(batch.observations, chosen)[0] - q[0]
        return {
            "policy/distance": jnp.mean((chosen - batch.actions) ** 2),
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(),
            "critic/q_min": q.min(),
            "critic/q_max": q.max(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
        }
