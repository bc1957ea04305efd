"""DTQL: Diffusion Trusted Q-Learning (Chen et al., 2024).

A denoiser D learns what was done, critics learn by in-sample expectiles as IQL's, and a one-step
Gaussian policy climbs Q within the region that D trusts. Nothing is ever sampled by diffusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from acpo.algorithms.base import (
    ABOVE_0,
    INSIDE,
    NOT_NEGATIVE,
    SHARE,
    About,
    Batch,
    Limit,
    Method,
    Metrics,
    Schedule,
    Spec,
    adam_step,
    bellman_target,
    expectile_loss,
)
from acpo.algorithms.in_sample import Values
from acpo.denoising import SigmaNet, denoising_loss, draw_sigma
from acpo.networks import MLP, Gaussian, Head, TwinQ, mish, normal_log_prob

# Recorded actions of ±1 have no finite atanh; the authors divide by this first.
ACTION_MARGIN = 1.001


class DTQLState(NamedTuple):
    critics: Values
    denoiser: SigmaNet
    policy: MLP
    optimisers: tuple[optax.OptState, optax.OptState, optax.OptState]
    """Of critics, denoiser and policy, which begin at different steps and have their own rates."""
    schedule: Schedule


@dataclass(frozen=True)
class DTQL(Method):
    """min_θ α L_TR(θ) − E_{a~πθ}[min_i Q_i(s,a)] − γ_D E_D[log πθ(a|s)], with the trust region
    L_TR = E_{a~πθ, σ, ε}[‖(D(a + σε; s, σ) − a) / c_out‖²] of a denoiser D fitted to the data.
    """

    about: ClassVar[About] = About(
        paper="Diffusion Policies creating a Trust Region for Offline RL (Chen et al.)",
        year=2024,
        family="diffusion",
        constrains="πθ to where a denoiser of the data makes small errors",
        networks="twin Q, V, denoiser, Gaussian policy",
        source="TianyuCodings/Diffusion_Trusted_Q_Learning, main.py",
    )
    # The authors' code; the pretraining of 50,000 steps as a share of each run's length. They ran
    # AntMaze v0 and v2 with the same numbers. No run on NeoRL2 was found.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "halfcheetah-medium-v2": {"alpha": 1.0},
        "halfcheetah-medium-expert-v2": {"alpha": 50.0},
        "hopper-medium-v2": {"learning_rate": 1e-4, "decay": True},
        "hopper-medium-expert-v2": {"alpha": 20.0},
        "walker2d-medium-v2": {"decay": True},
        "walker2d-medium-replay-v2": {"decay": True},
        "walker2d-medium-expert-v2": {"decay": True},
        "antmaze": {
            "alpha": 1.0,
            "likelihood": 1.0,
            "expectile": 0.9,
            "batch_size": 2048,
            "pretraining": 0.11,
            "relabel": "reward - 1",
        },
        "antmaze-umaze-v2": {"pretraining": 0.09},
        "antmaze-umaze-diverse-v2": {"learning_rate": 3e-5, "decay": True, "pretraining": 0.09},
        "antmaze-large-play-v2": {"pretraining": 0.125},
        "antmaze-large-diverse-v2": {"alpha": 0.5, "pretraining": 0.14},
        "kitchen": {"alpha": 200.0, "decay": True, "pretraining": 0.09},
        "kitchen-complete-v0": {"learning_rate": 1e-4},
        "kitchen-partial-v0": {"alpha": 100.0, "learning_rate": 1e-4, "pretraining": 0.05},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **Method.limits,
        "expectile": INSIDE,
        "pretraining": SHARE,
        "alpha": NOT_NEGATIVE,
        "likelihood": NOT_NEGATIVE,
        "critic_learning_rate": ABOVE_0,
        "tau": Limit(lambda tau: tau == Method.tau, "left out: DTQL has no target critics"),
    }

    alpha: float = 5.0
    """α, weight of the trust region."""
    likelihood: float = 0.0
    """γ in the paper, here γ_D: weight of the recorded actions' log πθ."""
    expectile: float = 0.7
    """τ of V's expectile regression."""
    pretraining: float = 0.05
    """First share of the run, in which critics and denoiser learn and the policy waits."""
    learning_rate: float = 3e-4
    """Adam's step size for policy and denoiser."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for Q and V."""
    decay: bool = False
    """After pretraining, let all step sizes fall to 0 by a cosine."""
    tau: float = 5e-3
    """Not to be changed: V stands in for the target critics of other methods."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of every network; Mish in all but the policy, layer normalisation in Q. The
    authors' denoiser has a fourth, but no activation between its first two: one layer as well."""

    @property
    def head(self) -> str:
        return "squashed"

    @property
    def policy_head(self) -> Head:
        return Head("squashed", log_std_min=-5.0, log_std_max=2.0)

    def init(self, key: Array, spec: Spec) -> DTQLState:
        key_value, key_critic, key_denoiser, key_policy = jax.random.split(key, 4)
        s, a = spec.observation_dim, spec.action_dim
        critics = Values(
            value=MLP.create(key_value, (s, *self.hidden, 1), activation=mish),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1), True, mish),
        )
        denoiser = SigmaNet.create(key_denoiser, s, a, self.hidden)
        policy = MLP.create(key_policy, (s, *self.hidden, 2 * a))
        adam = optax.scale_by_adam()
        return DTQLState(
            critics=critics,
            denoiser=denoiser,
            policy=policy,
            optimisers=(adam.init(critics), adam.init(denoiser), adam.init(policy)),
            schedule=Schedule.start(spec.total_steps),
        )

    def actor(self, state: DTQLState) -> MLP:
        """The policy's mean; the authors draw 1024 actions and one of them by softmax of Q."""
        return state.policy

    # --- losses ---------------------------------------------------------------------------------

    def value_loss(self, v: Array, q: Array) -> tuple[Array, Metrics]:
        """L_V = E[|τ − 1{u < 0}| u²], u = min_i Q_i(s,a) − V(s), Q not a target."""
        loss = expectile_loss(jax.lax.stop_gradient(q.min(axis=0)) - v, self.expectile)
        return loss, {"value/loss": loss, "value/v": v.mean()}

    def critic_loss(
        self, q: Array, rewards: Array, terminals: Array, next_v: Array
    ) -> tuple[Array, Metrics]:
        """L_Q = Σ_i E[(r + γ (1 − terminal) V(s') − Q_i(s,a))²]."""
        target = bellman_target(rewards, terminals, next_v, self.gamma)
        loss = jnp.mean(jnp.sum((target - q) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def denoiser_loss(
        self, net: SigmaNet, batch: Batch, sigma: Array, noise: Array
    ) -> tuple[Array, Metrics]:
        """E_{(s,a)~D, σ, ε}[‖(D(a + σε; s, σ) − a) / c_out‖²]."""
        loss = denoising_loss(net, batch.actions, batch.observations, sigma, noise)
        return loss, {"denoiser/loss": loss}

    def policy_loss(
        self,
        policy: MLP,
        critic: TwinQ,
        denoiser: SigmaNet,
        batch: Batch,
        sigma: Array,
        noise: Array,
    ) -> tuple[Array, Metrics]:
        """α L_TR − E[min_i Q_i(s, a~πθ)] − γ_D E_D[log πθ(a|s)], critics and denoiser at rest.

        `noise` [2, …] serves the action and, with σ, the trust region.
        """
        s = batch.observations
        gaussian = self.policy_head.parameters(policy(s))
        actions = self.policy_head.sample(gaussian, noise[0])
        trust = denoising_loss(denoiser, actions, s, sigma, noise[1])
        q = critic(s, actions).min(axis=0).mean()
        loss = self.alpha * trust - q
        if self.likelihood > 0.0:
            loss = loss - self.likelihood * self.log_likelihood(gaussian, batch.actions).mean()
        return loss, {"policy/loss": loss, "policy/trust": trust, "policy/q": q}

    def log_likelihood(self, gaussian: Gaussian, actions: Array) -> Array:
        """log N(atanh a) of actions pulled inside: log πθ(a|s) but for what is no function of θ."""
        return normal_log_prob(jnp.arctanh(actions / ACTION_MARGIN), gaussian)

    def progress(self, schedule: Schedule) -> tuple[Array, Array]:
        """Whether the policy still waits, and the factor on all step sizes."""
        step = schedule.since(self.pretraining)
        since = Schedule(jnp.maximum(step, 0), step + schedule.total - schedule.step)
        return step < 0, since.cosine(1.0, 0.0) if self.decay else jnp.ones(())

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: DTQLState, batch: Batch, key: Array) -> tuple[DTQLState, Metrics]:
        """A step on V and Q, one on the denoiser, then, after pretraining, one on the policy, which
        sees the new critics and denoiser. Its metrics are 0 while it waits."""
        key_sigma, key_noise = jax.random.split(key)
        sigma = draw_sigma(key_sigma, (2, len(batch.actions)))
        noise = jax.random.normal(key_noise, (3, *batch.actions.shape))

        def total_loss(trained: tuple[Values, SigmaNet]) -> tuple[Array, Metrics]:
            (value, critic), denoiser = trained
            q = critic(batch.observations, batch.actions)
            value_loss, value_metrics = self.value_loss(value(batch.observations)[..., 0], q)
            next_v = value(batch.next_observations)[..., 0]
            critic_loss, critic_metrics = self.critic_loss(
                q, batch.rewards, batch.terminals, next_v
            )
            loss, metrics = self.denoiser_loss(denoiser, batch, sigma[0], noise[0])
            metrics = {**value_metrics, **critic_metrics, **metrics}
            return value_loss + critic_loss + loss, metrics

        trained = (state.critics, state.denoiser)
        (critics_gradient, gradient), metrics = jax.grad(total_loss, has_aux=True)(trained)
        critics_adam, denoiser_adam, policy_adam = state.optimisers

        waiting, factor = self.progress(state.schedule)
        critics, critics_adam = adam_step(
            state.critics, critics_gradient, critics_adam, factor * self.critic_learning_rate
        )
        denoiser, denoiser_adam = adam_step(
            state.denoiser, gradient, denoiser_adam, factor * self.learning_rate
        )

        def learn(policy: MLP, adam: optax.OptState) -> Any:
            gradient, metrics = jax.grad(self.policy_loss, has_aux=True)(
                policy, critics.critic, denoiser, batch, sigma[1], noise[1:]
            )
            return *adam_step(policy, gradient, adam, factor * self.learning_rate), metrics

        def wait(policy: MLP, adam: optax.OptState) -> Any:
            names = ("policy/loss", "policy/trust", "policy/q")
            return policy, adam, {name: jnp.zeros(()) for name in names}

        policy, policy_adam, policy_metrics = jax.lax.cond(
            waiting, wait, learn, state.policy, policy_adam
        )
        return DTQLState(
            critics=critics,
            denoiser=denoiser,
            policy=policy,
            optimisers=(critics_adam, denoiser_adam, policy_adam),
            schedule=state.schedule.next(),
        ), {**metrics, **policy_metrics}

    def diagnose(self, state: DTQLState, batch: Batch, key: Array) -> Metrics:
        """What Q and the denoiser make of the policy's mean beside recorded actions."""
        s = batch.observations
        gaussian = self.policy_head.parameters(state.policy(s))
        mean = self.policy_head.mode(gaussian)
        key_sigma, key_noise = jax.random.split(key)
        sigma, noise = draw_sigma(key_sigma, (len(s),)), jax.random.normal(key_noise, mean.shape)
        q = state.critics.critic(s, batch.actions)
        advantage = q.min(axis=0) - state.critics.value(s)[..., 0]
        return {
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(),
            "critic/q_min": q.min(),
            "critic/q_max": q.max(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
            "policy/log_std": gaussian.log_std.mean(),
            "policy/gain": (state.critics.critic(s, mean).min(axis=0) - q.min(axis=0)).mean(),
            "policy/distance": jnp.sqrt(jnp.mean((mean - batch.actions) ** 2)),
            "policy/trust_of_mean": denoising_loss(state.denoiser, mean, s, sigma, noise),
        }
