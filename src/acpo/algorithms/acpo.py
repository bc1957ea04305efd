"""ACPO: Automatic Constraint Policy Optimization (Algorithm 1), and its fixed-λ special cases.

Four networks and one number are trained together: V_ψ, the twin Q_φ, πθ, and the dial λ. AWAC,
InAC and practical wBC are this file with another rule for λ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo import cci
from acpo.algorithms.base import (
    COUNT,
    NOT_NEGATIVE,
    About,
    Batch,
    Limit,
    Metrics,
    Schedule,
    Size,
    Spec,
    adam_step,
    soft_update,
)
from acpo.algorithms.weighing import Weighing
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.density import Density, Exact
from acpo.behavior.models import make_density
from acpo.networks import MLP, Head, HeadKind, TwinQ

# So many updates, or a quarter of a shorter run, may a policy take to learn to act as the data does
# before it is told by its constraint how well it does.
PATIENCE = 5_000


class Trained(NamedTuple):
    """What the optimiser moves."""

    actor: MLP
    value: MLP
    critic: TwinQ


class ACPOState(NamedTuple):
    trained: Trained
    target: TwinQ
    average: MLP
    """Running average of the actor; the policy that is evaluated and saved."""
    lam: Array
    slack: Array
    """E[log πβ] − ε, a running mean; negative where λ is fixed."""
    waits: Array
    """Whether λ still waits for the constraint to be met."""
    clones: Array
    """Whether part of πθ's loss is plain cloning; once it is, to the end."""
    optimiser: optax.OptState
    schedule: Schedule


@dataclass(frozen=True)
class ACPO(Weighing):
    """max_θ E_D[w_λ log πθ(a|s)], w_λ = exp(A/α + (λ−α)/α log πβ), λ by its rule.

    Fields left at None or "auto" are settled from the data before training; the run directory
    stores what they became.
    """

    about: ClassVar[About] = About(
        paper="Automatic Constraint Policy Optimization",
        year=2026,
        family="weighted BC, density or support, by λ",
        constrains="πθ to πβ, as hard as E[log πβ] ≥ ε takes",
        networks="π, V, two Q, πβ",
        source="the paper's hyperparameter tables by --preset paper; defaults: docs/defaults.md",
    )
    needs_density: ClassVar[bool] = True
    return_range: ClassVar[float] = 300.0
    limits: ClassVar[dict[str, Limit]] = {
        **Weighing.limits,
        "rule.lam_start": NOT_NEGATIVE,
        "rule.lam_rate": NOT_NEGATIVE,
        "rule.slack_steps": COUNT,
        "entropy_price": NOT_NEGATIVE,
    }

    rule: cci.Rule = field(default_factory=lambda: cci.dual(waits=True, slack_steps=100))
    """How λ moves."""
    gamma: float = 0.99
    """γ, the discount."""
    tau: float = 0.02
    """τ, rate of the soft target update."""
    actor_average: float = 0.2
    """What is evaluated and saved is an average of πθ over this share of the steps so far; 0 takes
    πθ itself."""
    learning_rate: float = 5e-4
    """Adam's step size for actor, V and Q at the start …"""
    final_learning_rate: float = 1e-4
    """… and at the end of the run, by a cosine."""
    batch_size: int = 256
    """Transitions per update."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of actor, V and Q."""
    head: Literal["plain", "squashed", "auto"] = "auto"
    """Distribution of πθ, and of a Gaussian πβ. auto: the head that gives more mass to the
    neighbourhood of held-out actions, by two short Gaussian fits."""
    log_std_min: float = -5.0
    """Lower bound of log σ."""
    log_std_max: float = 2.0
    """Upper bound of log σ."""
    value_target: Literal["target", "online"] = "target"
    """Which critics V's target takes the minimum of."""
    layer_norm: bool = True
    """Layer normalisation in the hidden layers of Q and V."""
    normalize_observations: bool = True
    """Z-score observations with the data's mean and deviation; the policy carries both."""
    reward_scale: float | None = None
    """Factor on rewards. None: 300 / (max − min episode return), so that α has one meaning."""
    value_start: float | None = None
    """What Q and V start at. None: the constant c that Bellman's equation asks for on the data's
    average, c = E[r] + γ (1 − P(terminal)) c. A common constant is what bootstrapping learns last,
    at the rate γ per sweep; until it has, V trails Q and A is mostly by how much."""
    entropy_price: float | None = None
    """What a nat of entropy is worth in V's target, in α. None: 1, or less where entropy would sway
    the data's values more than rewards do (`training.prepare`)."""
    behavior: BehaviorConfig = field(default_factory=BehaviorConfig)
    """Which πβ is fitted, and how."""

    # --- pieces ---------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        if self.rule.epsilon == "auto":
            raise ValueError("ε has to be settled from data before it is used")
        return self.rule.epsilon

    @property
    def price(self) -> float:
        """What a nat of entropy is worth in V's target."""
        if self.entropy_price is None:
            raise ValueError("entropy_price has to be settled from data before it is used")
        return self.alpha * self.entropy_price

    @property
    def policy_head(self) -> Head:
        return Head.settled(self.head, self.log_std_min, self.log_std_max)

    @property
    def density(self) -> Density:
        return make_density(self.behavior, self.policy_head)

    def behavior_head(self, kind: str) -> Head:
        return Head.settled(kind, self.log_std_min, self.log_std_max)

    def settled(self, head: HeadKind, log_beta: np.ndarray, size: Size) -> Self:
        """Its head, its spreads, and an automatic ε: the held-out mean of log πβ less a margin.

        log πβ is clipped as it is in the constraint, which could not be met otherwise.
        """
        rule = self.rule
        if rule.epsilon == "auto":
            mean = float(np.clip(log_beta, -self.log_prob_clip, self.log_prob_clip).mean())
            rule = replace(rule, epsilon=mean - rule.epsilon_margin)
        return replace(self, head=head, rule=rule).softened(size)

    def init(self, key: Array, spec: Spec) -> ACPOState:
        key_actor, key_value, key_critic = jax.random.split(key, 3)
        s, a = spec.observation_dim, spec.action_dim
        if self.value_start is None:
            raise ValueError("value_start has to be settled from data before it is used")
        value = MLP.create(key_value, (s, *self.hidden, 1), self.layer_norm)
        critic = TwinQ.create(key_critic, (s + a, *self.hidden, 1), self.layer_norm)
        trained = Trained(
            actor=MLP.create(key_actor, (s, *self.hidden, 2 * a)),
            value=value.raised(self.value_start),
            critic=critic.raised(self.value_start),
        )
        start = self.alpha if self.rule.lam_start is None else self.rule.lam_start
        return ACPOState(
            trained=trained,
            target=trained.critic,
            average=trained.actor,
            lam=jnp.float32(start),
            slack=jnp.float32(-1.0),  # forgotten after a few `slack_steps`
            waits=jnp.bool(self.rule.lam_waits),
            clones=jnp.bool(False),
            optimiser=optax.scale_by_adam().init(trained),
            schedule=Schedule.start(spec.total_steps),
        )

    def actor(self, state: ACPOState) -> MLP:
        return state.average

    def q_range(self, rewards: tuple[float, float]) -> tuple[float, float]:
        """The least and the largest Q that rewards within `rewards` allow.

        Q = E Σ_t γ^t (r_t − γ α log πθ), α at its price and |log πθ| clipped; an episode may end at
        once.
        """
        if self.gamma >= 1.0:  # nothing bounds a sum that is not discounted
            return -float("inf"), float("inf")
        entropy = self.price * self.log_prob_clip
        low, high = min(rewards[0] - entropy, 0.0), max(rewards[1] + entropy, 0.0)
        return low / (1.0 - self.gamma), high / (1.0 - self.gamma)

    def behavior_log_prob(self, batch: Batch, actions: Array, key: Array) -> Array:
        """log πβ(ã|s) of actions ã drawn at the batch's states, for the dual step.

        An exact πβ is read from what stands beside the rows. Any other has to run here, and does
        so on a share of the rows, whose mean estimates the same E[log πβ].
        """
        density = self.density
        if isinstance(density, Exact):
            return density.log_prob_given(batch.behavior, actions)
        some = slice(None, None, int(self.behavior.own("every")))
        # The key itself draws the actions.
        key = jax.random.fold_in(key, 1)
        return density.log_prob(batch.behavior, batch.observations[some], actions[some], key)

    # --- losses ---------------------------------------------------------------------------------

    def value_loss(self, v: Array, q: Array, log_pi: Array) -> tuple[Array, Metrics]:
        """L_V = ½ (V(s) − Y_V)², Y_V = min_i Q_i(s,a) − α log πθ(a|s), a ~ πθ   (Eq-Loss-V).

        α there is the weight's times `entropy_price`.
        """
        target = q.min(axis=0) - self.price * self.clip(log_pi)
        loss = 0.5 * jnp.mean((v - jax.lax.stop_gradient(target)) ** 2)
        return loss, {"value/loss": loss, "value/v": v.mean()}

    def critic_loss(
        self, q: Array, rewards: Array, terminals: Array, next_v: Array
    ) -> tuple[Array, Metrics]:
        """L_Q = Σ_i ½ (r + γ (1 − terminal) V(s') − Q_i(s,a))²   (Eq-Loss-Q, with the mask)."""
        target = rewards + self.gamma * (1.0 - terminals) * jax.lax.stop_gradient(next_v)
        loss = 0.5 * jnp.mean(jnp.sum((target - q) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def policy_loss(
        self,
        log_pi: Array,
        advantage: Array,
        log_beta: Array,
        lam: Array,
        trust: Array | float = 0.0,
        slack: Array | float = 0.0,
        clones: Array | bool = False,
    ) -> tuple[Array, Metrics]:
        """−J^CCI = −E_D[w_λ(s,a) log πθ(a|s)]   (Eq-CCI-Obj)."""
        weight = self.weight(advantage, log_beta, lam, trust, slack, clones)
        loss = -jnp.mean(jax.lax.stop_gradient(weight) * log_pi)
        return loss, {"policy/loss": loss}

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: ACPOState, batch: Batch, key: Array) -> tuple[ACPOState, Metrics]:
        """One gradient step on V, Q and π, one dual step on λ, one soft target update.

        Every network runs once per set of inputs: π(s) serves the sample, its density and the
        regression; Q(s,a) and V(s) serve their losses and the advantage.
        """
        noise = jax.random.normal(key, batch.actions.shape)
        head = self.policy_head

        def total_loss(trained: Trained) -> tuple[Array, tuple[tuple[Array, ...], Metrics]]:
            policy = head.parameters(trained.actor(batch.observations))
            actions, log_pi = jax.lax.stop_gradient(head.sample_with_log_prob(policy, noise))
            log_beta = self.clip(self.behavior_log_prob(batch, actions, key))
            lam, slack, waits, clones = state.lam, state.slack, state.waits, state.clones
            if self.rule.lam_rate > 0:
                step, total = state.schedule
                slack += (log_beta.mean() - self.epsilon - slack) / self.rule.slack_steps
                waits &= (slack < 0) & (2 * step < total)
                if self.cloning_share > 0:
                    outside = slack < -self.rule.epsilon_margin
                    clones |= outside & (step >= jnp.minimum(PATIENCE, total // 4))
                moved = cci.dual_step(lam, slack, self.rule.lam_rate)
                lam = jnp.where(waits, lam, moved)

            v = trained.value(batch.observations)[..., 0]
            next_v = trained.value(batch.next_observations)[..., 0]
            q = trained.critic(batch.observations, batch.actions)
            bootstrap = state.target if self.value_target == "target" else trained.critic
            sampled_q = jax.lax.stop_gradient(bootstrap(batch.observations, actions))
            data_q = jax.lax.stop_gradient(q.min(axis=0))
            advantage = data_q - jax.lax.stop_gradient(v)
            data_log_beta = self.data_log_beta(batch)

            value_loss, value_metrics = self.value_loss(v, sampled_q, log_pi)
            critic_loss, critic_metrics = self.critic_loss(
                q, batch.rewards, batch.terminals, next_v
            )
            policy_loss, policy_metrics = self.policy_loss(
                head.log_prob(policy, batch.actions),
                self.bounded(advantage, data_log_beta),
                data_log_beta,
                lam,
                self.trust(advantage, data_q - sampled_q.min(axis=0)),
                jnp.where(clones, 0.0, slack),
                clones,
            )
            metrics = {
                **value_metrics,
                **critic_metrics,
                **policy_metrics,
                "dial/lambda": lam,
                "dial/constraint": log_beta.mean(),
            }
            return value_loss + critic_loss + policy_loss, ((lam, slack, waits, clones), metrics)

        gradient, aux = jax.grad(total_loss, has_aux=True)(state.trained)
        (lam, slack, waits, clones), metrics = aux
        rate = state.schedule.cosine(self.learning_rate, self.final_learning_rate)
        trained, optimiser = adam_step(state.trained, gradient, state.optimiser, rate)
        return ACPOState(
            trained=trained,
            target=soft_update(state.target, trained.critic, self.tau),
            average=state.schedule.average(state.average, trained.actor, self.actor_average),
            lam=lam,
            slack=slack,
            waits=waits,
            clones=clones,
            optimiser=optimiser,
            schedule=state.schedule.next(),
        ), metrics

    def diagnose(self, state: ACPOState, batch: Batch, key: Array) -> Metrics:
        """What a user needs to see the dial work; too dear for every step, taken once per log."""
        head = self.policy_head
        actor, value, critic = state.trained
        policy = head.parameters(actor(batch.observations))
        noise = jax.random.normal(key, batch.actions.shape)
        actions, log_pi = head.sample_with_log_prob(policy, noise)
        log_beta = self.behavior_log_prob(batch, actions, key)
        v = value(batch.observations)[..., 0]
        q = critic(batch.observations, batch.actions)
        advantage = q.min(axis=0) - v
        data_log_beta = self.data_log_beta(batch)
        bootstrap = state.target if self.value_target == "target" else critic
        sampled_q = bootstrap(batch.observations, actions)
        trust = self.trust(advantage, q.min(axis=0) - sampled_q.min(axis=0))
        inputs = (self.bounded(advantage, data_log_beta), data_log_beta, state.lam)
        slack = jnp.where(state.clones, 0.0, state.slack)
        ordered = self.log_weight(*inputs, slack=slack)
        weight = self.weight(*inputs, trust, slack, state.clones)
        metrics = {
            "weights/trust": trust,
            "weights/clipped": jnp.mean(ordered >= self.edge(slack)),
            "weights/cloning": self.cloning_share * state.clones,
            "weights/effective_sample_size": jnp.sum(weight) ** 2
            / (len(weight) * jnp.sum(weight**2) + 1e-30),
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(),
            "critic/q_min": q.min(),
            "critic/q_max": q.max(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
            "policy/entropy": -log_pi.mean(),
            "policy/log_std": policy.log_std.mean(),
            "policy/log_prob_data": head.log_prob(policy, batch.actions).mean(),
            "dial/clipped": jnp.mean(jnp.abs(log_beta) > self.log_prob_clip),
        }
        if self.rule.lam_rate > 0:
            metrics["dial/slack"] = state.slack
        for percent in (10, 50, 90):
            for where, values in (("data", batch.log_beta), ("policy", log_beta)):
                metrics[f"behavior/log_beta_{where}_q{percent}"] = jnp.percentile(values, percent)
        return metrics
