"""In-sample learning: what IQL and EQL share, and the two places where they differ.

Q, V and π are trained on the data's actions alone, so that Q is never asked about another:

    L_Q = E_D[Σ_i (r + γ (1 − terminal) V(s') − Q_i(s,a))²]
    L_π = −E_D[w(A) log πθ(a|s)],  A = min_i Q'_i(s,a) − V(s),  Q' the target critics

A method says how V is fitted to Q' (`value_loss`) and what w is (`log_weight`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo.algorithms.base import (
    ABOVE_0,
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
from acpo.networks import LOG_2PI, MLP, Gaussian, Head, TwinQ

HEAD = Head("plain", log_std_min=-5.0, log_std_max=2.0)


class Policy(NamedTuple):
    """a ~ N(tanh(m(s)), σ²) with one σ for all states."""

    mean: MLP
    log_std: Array

    def __call__(self, observations: Array, dropout: float, key: Array) -> Gaussian:
        log_std = jnp.clip(self.log_std, HEAD.log_std_min, HEAD.log_std_max)
        return Gaussian(jnp.tanh(self.mean(observations, dropout, key)), log_std)


class Values(NamedTuple):
    value: MLP
    critic: TwinQ


class InSampleState(NamedTuple):
    policy: Policy
    values: Values
    target: TwinQ
    policy_optimiser: optax.OptState
    values_optimiser: optax.OptState
    schedule: Schedule


@dataclass(frozen=True)
class InSample(Method):
    """max_θ E_D[w(A) log πθ(a|s)], with V and Q learned without an action outside the data."""

    limits: ClassVar[dict[str, Limit]] = {**Method.limits, "dropout": SHARE, "weight_max": ABOVE_0}
    reward_scale: float | None = None
    """Factor on rewards. None: so that episode returns span a range of 1000."""
    weight_max: float = 100.0
    """Upper clip of the weight w."""
    dropout: float = 0.0
    """Share of the actor's hidden units that is dropped in training."""
    layer_norm: bool = False
    """Layer normalisation in the hidden layers of V."""

    # --- pieces ---------------------------------------------------------------------------------

    @property
    def head(self) -> str:
        return HEAD.kind

    def init(self, key: Array, spec: Spec) -> InSampleState:
        key_policy, key_value, key_critic = jax.random.split(key, 3)
        s, a = spec.observation_dim, spec.action_dim
        policy = Policy(MLP.create(key_policy, (s, *self.hidden, a)), jnp.zeros(a))
        values = Values(
            value=MLP.create(key_value, (s, *self.hidden, 1), self.layer_norm),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1)),
        )
        return InSampleState(
            policy=policy,
            values=values,
            target=values.critic,
            policy_optimiser=optax.scale_by_adam().init(policy),
            values_optimiser=optax.scale_by_adam().init(values),
            schedule=Schedule.start(spec.total_steps),
        )

    def actor(self, state: InSampleState) -> MLP:
        """The policy as a network of mean and log σ, whose weights to log σ are zero."""
        mean, log_std = state.policy
        *weights, last = mean.weights
        *biases, bias = mean.biases
        return MLP(
            (*weights, jnp.concatenate([last, jnp.zeros_like(last)], axis=-1)),
            (*biases, jnp.concatenate([bias, log_std], axis=-1)),
        )

    # --- losses ---------------------------------------------------------------------------------

    @abstractmethod
    def value_loss(self, v: Array, q: Array) -> tuple[Array, Metrics]:
        """How far V(s) is from what it shall be of q = min_i Q'_i(s,a)."""

    @abstractmethod
    def log_weight(self, advantage: Array) -> Array:
        """log w, before it is clipped."""

    def critic_loss(
        self, q: Array, rewards: Array, terminals: Array, next_v: Array
    ) -> tuple[Array, Metrics]:
        """L_Q = Σ_i (r + γ (1 − terminal) V(s') − Q_i(s,a))²."""
        target = bellman_target(rewards, terminals, next_v, self.gamma)
        loss = jnp.mean(jnp.sum((target - q) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def policy_loss(self, log_pi: Array, advantage: Array) -> tuple[Array, Metrics]:
        """L_π = −w(A) log πθ(a|s), the exponent clipped before exp."""
        exponent = jnp.minimum(self.log_weight(advantage), np.log(self.weight_max))
        loss = -jnp.mean(jax.lax.stop_gradient(jnp.exp(exponent)) * log_pi)
        return loss, {"policy/loss": loss}

    # --- one step -------------------------------------------------------------------------------

    def update(
        self, state: InSampleState, batch: Batch, key: Array
    ) -> tuple[InSampleState, Metrics]:
        """One gradient step on V, Q and π, one soft target update.

        All gradients are taken at the same point, so that V(s) runs once; the authors' codes step
        V first and give the new V to the other two. The actor's rate falls to 0 by a cosine over
        the run, that of V and Q is constant.
        """
        q_target = state.target(batch.observations, batch.actions).min(axis=0)
        next_v = state.values.value(batch.next_observations)[..., 0]

        def total_loss(policy: Policy, values: Values) -> tuple[Array, Metrics]:
            v = values.value(batch.observations)[..., 0]
            q = values.critic(batch.observations, batch.actions)
            log_pi = HEAD.log_prob(policy(batch.observations, self.dropout, key), batch.actions)
            value_loss, value_metrics = self.value_loss(v, q_target)
            critic_loss, critic_metrics = self.critic_loss(
                q, batch.rewards, batch.terminals, next_v
            )
            policy_loss, policy_metrics = self.policy_loss(log_pi, q_target - v)
            metrics = {**value_metrics, **critic_metrics, **policy_metrics}
            return value_loss + critic_loss + policy_loss, metrics

        (to_policy, to_values), metrics = jax.grad(total_loss, argnums=(0, 1), has_aux=True)(
            state.policy, state.values
        )
        policy, policy_optimiser = adam_step(
            state.policy,
            to_policy,
            state.policy_optimiser,
            state.schedule.cosine(self.learning_rate, 0.0),
        )
        values, values_optimiser = adam_step(
            state.values, to_values, state.values_optimiser, jnp.float32(self.learning_rate)
        )
        return InSampleState(
            policy=policy,
            values=values,
            target=soft_update(state.target, values.critic, self.tau),
            policy_optimiser=policy_optimiser,
            values_optimiser=values_optimiser,
            schedule=state.schedule.next(),
        ), metrics

    def diagnose(self, state: InSampleState, batch: Batch, key: Array) -> Metrics:
        """How sharply the weights choose among the data's actions, and whether Q is plausible."""
        policy = state.policy(batch.observations, 0.0, key)
        q = state.values.critic(batch.observations, batch.actions)
        v = state.values.value(batch.observations)[..., 0]
        advantage = state.target(batch.observations, batch.actions).min(axis=0) - v
        exponent = self.log_weight(advantage)
        weight = jnp.exp(jnp.minimum(exponent, np.log(self.weight_max)))
        return {
            "weights/clipped": jnp.mean(exponent > np.log(self.weight_max)),
            "weights/effective_sample_size": jnp.sum(weight) ** 2
            / (len(weight) * jnp.sum(weight**2) + 1e-30),
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(),
            "critic/q_min": q.min(),
            "critic/q_max": q.max(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
            "policy/entropy": jnp.sum(policy.log_std + 0.5 * (1.0 + LOG_2PI)),
            "policy/log_std": policy.log_std.mean(),
            "policy/log_prob_data": HEAD.log_prob(policy, batch.actions).mean(),
        }
