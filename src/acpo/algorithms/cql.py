"""CQL: Conservative Q-Learning (Kumar et al., 2020), the variant CQL(H) on top of SAC.

The critics' loss has one more term: it presses Q down where actions were drawn by no data, and up
at the data's own actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.algorithms.base import (
    ABOVE_0,
    COUNT,
    NOT_NEGATIVE,
    SHARE,
    About,
    Batch,
    Limit,
    Metrics,
    Spec,
    bellman_target,
    gradient_by_blocks,
)
from acpo.algorithms.soft import Soft, SoftState, repeated
from acpo.networks import MLP, TwinQ

# The authors bound the multiplier that keeps the gap.
PRICE_MAX = 1e6


class Trained(NamedTuple):
    """What the optimiser moves."""

    actor: MLP
    critic: TwinQ
    log_alpha: Array
    """Of SAC's temperature α."""
    log_price: Array
    """Of the multiplier α' that keeps the gap, where there is one to keep."""


@dataclass(frozen=True)
class CQL(Soft):
    """min_Q Σ_i w E_s[log Σ_a exp Q_i(s,a) − E_{a~D} Q_i(s,a)] + E_D[(Q_i − y)²]; π, α as SAC."""

    about: ClassVar[About] = About(
        paper="Conservative Q-Learning for Offline RL (Kumar et al.)",
        year=2020,
        family="conservative value",
        constrains="Q: low on actions out of the data, high on the data's",
        networks="π, two Q",
        source="aviralkumar2907/CQL, d4rl; NeoRL2's logs; Kitchen as in WSRL",
    )
    # The authors clone for 40,000 steps; here that is a share of the million that is usual. AntMaze
    # by their README and script; CORL takes other numbers there (rewards 10 r − 5, gap 0.8, the
    # best of ten next actions, deeper critics), and in Gym w 10 with π's rate 3e-5. Kitchen as its
    # comparisons run CQL: WSRL's experiments/configs/cql_config.py.
    # NeoRL2: of each task's runs (polixir/NeoRL2, benchmark/results/*-cql) the setting of the best
    # mean, which is the one that benchmark reports.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "antmaze": {"target_gap": 5.0, "relabel": "4*reward - 2"},
        "kitchen": {
            "importance_sampled": False,
            "cloning": 0.0,
            "backup_actions": 10,
            "hidden": (512, 512, 512),
            "relabel": "reward - 4",
        },
        "neorl2": {"backup_entropy": True, "weight": 10.0, "importance_sampled": False},
        "DMSD": {"weight": 5.0, "target_gap": 10.0, "importance_sampled": True},
        "Fusion": {"target_gap": 5.0},
        "Pipeline": {"target_gap": 10.0},
        "RandomFrictionHopper": {"target_gap": 5.0},
        "RocketRecovery": {"target_gap": 2.0, "importance_sampled": True},
        "SafetyHalfCheetah": {"target_gap": 2.0},
        "Simglucose": {"target_gap": 2.0},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **Soft.limits,
        "weight": NOT_NEGATIVE,
        "target_gap": NOT_NEGATIVE,
        "samples": COUNT,
        "backup_actions": COUNT,
        "cloning": SHARE,
        "actor_learning_rate": ABOVE_0,
    }

    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of every network."""
    actor_learning_rate: float = 1e-4
    """Adam's step size for π and the temperature; the critics have the other."""
    weight: float = 5.0
    """w, price of the gap between log Σ exp Q and the data's Q (min_q_weight in the code)."""
    target_gap: float | None = None
    """τ, the weighted gap that a multiplier on it keeps. None: no multiplier."""
    samples: int = 10
    """Actions per state from each of U(−1, 1), π(·|s) and π(·|s') that stand for log Σ exp Q."""
    importance_sampled: bool = True
    """Divide each sampled exp Q by its action's density, CQL(H). Else the plain sum, with the
    data's own action in it (min_q_version 2 in the code)."""
    backup_entropy: bool = False
    """Whether the critics' target has SAC's entropy term."""
    backup_actions: int = 1
    """The critics' target takes the best of so many actions of π."""
    cloning: float = 0.04
    """First share of the run, in which π maximises log π(a|s) of the data in place of Q."""

    # --- pieces ---------------------------------------------------------------------------------

    def init(self, key: Array, spec: Spec) -> SoftState:
        key_actor, key_critic = jax.random.split(key)
        s, a = spec.observation_dim, spec.action_dim
        trained = Trained(
            actor=MLP.create(key_actor, (s, *self.hidden, 2 * a)),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1)),
            log_alpha=jnp.zeros(()),
            log_price=jnp.zeros(()),
        )
        return SoftState.start(trained, spec)

    # --- losses ---------------------------------------------------------------------------------

    def critic_loss(self, q: Array, batch: Batch, next_value: Array) -> tuple[Array, Metrics]:
        """Σ_i (r + γ (1 − terminal) V(s') − Q_i(s,a))², V(s') = max_j min_k Q'_k(s',a'_j)."""
        target = bellman_target(batch.rewards, batch.terminals, next_value, self.gamma)
        loss = jnp.mean(jnp.sum((target - q) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def gap_loss(
        self, q: Array, sampled_q: Array, log_density: Array, log_price: Array
    ) -> tuple[Array, Metrics]:
        """α' Σ_i (w E[log Σ_k exp(Q_i(s,a_k) − log p(a_k)) − Q_i(s,a)] − τ).

        α' ascends on half of it; without a gap to keep, α' is 1 and τ is 0. `sampled_q` is
        [2, k, rows], `log_density` [k, rows].
        """
        if self.importance_sampled:
            exponents = sampled_q - log_density
        else:
            exponents = jnp.concatenate([sampled_q, q[:, None]], axis=1)
        gaps = jnp.mean(jax.nn.logsumexp(exponents, axis=1) - q, axis=-1)
        metrics = {"critic/gap": gaps.mean(), "critic/price": jnp.exp(log_price)}
        excess = self.weight * gaps
        if self.target_gap is None:
            return excess.sum(), metrics
        excess = excess - self.target_gap
        price = jnp.minimum(jnp.exp(log_price), PRICE_MAX)
        fall = jax.lax.stop_gradient(price) * excess.sum()
        rise = -0.5 * price * jax.lax.stop_gradient(excess.sum())
        return fall + rise, metrics

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: SoftState, batch: Batch, key: Array) -> tuple[SoftState, Metrics]:
        """One gradient step on critics, π, α and α', then one soft target update.

        All gradients are taken at the same point, where the authors take the steps one after
        another. π runs once at s and once at s': further actions differ in their noise alone. The
        critics run once on the data's and all sampled actions together.
        """
        head = self.policy_head
        key_noise, key_uniform = jax.random.split(key)
        rows, action_dim = batch.actions.shape
        drawn = max(1 + self.samples, self.backup_actions)
        noise = jax.random.normal(key_noise, (rows, 2, drawn, action_dim))
        shape = (rows, self.samples, action_dim)
        uniform = jax.random.uniform(key_uniform, shape, minval=-1.0)

        def total_loss(trained: Trained, rows: tuple[Batch, Array, Array]) -> tuple[Array, Metrics]:
            actor, critic, log_alpha, log_price = trained
            batch, noise, uniform = rows
            noise, uniform = jnp.moveaxis(noise, 0, 2), jnp.moveaxis(uniform, 0, 1)
            policy = head.parameters(actor(batch.observations))
            following = head.parameters(actor(batch.next_observations))
            actions, log_pi = head.sample_with_log_prob(policy, noise[0, 0])
            drawn, log_drawn = jax.lax.stop_gradient(
                head.sample_with_log_prob(policy, noise[0, 1 : 1 + self.samples])
            )
            next_all = jax.lax.stop_gradient(head.sample_with_log_prob(following, noise[1]))
            next_drawn, log_next_drawn = (x[1 : 1 + self.samples] for x in next_all)

            ahead, log_ahead = (x[: self.backup_actions] for x in next_all)
            next_value = state.target(repeated(batch.next_observations, ahead), ahead).min(axis=0)
            if self.backup_entropy:
                next_value = next_value - jnp.exp(log_alpha) * log_ahead
            next_value = next_value.max(axis=0)
            everywhere = jnp.concatenate([batch.actions[None], uniform, next_drawn, drawn])
            all_q = critic(repeated(batch.observations, everywhere), everywhere)
            q, sampled_q = all_q[:, 0], all_q[:, 1:]
            log_uniform = jnp.full(uniform.shape[:-1], action_dim * np.log(0.5))
            log_density = jnp.concatenate([log_uniform, log_next_drawn, log_drawn])
            policy_q = jax.lax.stop_gradient(critic)(batch.observations, actions).min(axis=0)
            cloning = state.schedule.since(self.cloning) < 0
            worth = jnp.where(cloning, head.log_prob(policy, batch.actions), policy_q)

            critic_loss, critic_metrics = self.critic_loss(q, batch, next_value)
            gap_loss, gap_metrics = self.gap_loss(q, sampled_q, log_density, log_price)
            policy_loss, policy_metrics = self.policy_loss(log_pi, log_alpha, worth)
            loss, metrics = self.temperature_loss(log_alpha, log_pi, action_dim)
            metrics = {**critic_metrics, **gap_metrics, **policy_metrics, **metrics}
            return critic_loss + gap_loss + policy_loss + loss, metrics

        gradient, metrics = gradient_by_blocks(
            total_loss, state.trained, (batch, noise, uniform), inputs=1 + 3 * self.samples
        )
        slow, fast = self.actor_learning_rate, self.learning_rate
        rates = (slow, fast, slow, fast)
        return state.stepped(gradient, rates, self.tau), metrics

    def diagnose(self, state: SoftState, batch: Batch, key: Array) -> Metrics:
        """Q at the data's actions beside Q where the data has none."""
        actor, critic, *_ = state.trained
        q, policy_q, random_q, metrics = self.compared(critic, actor, batch, key)
        return {
            **metrics,
            "critic/q_policy": policy_q.mean(),
            "critic/q_random": random_q.mean(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
        }
