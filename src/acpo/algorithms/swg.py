"""SWG: Diffusion Self-Weighted Guidance (Tagle, Ruiz-del-Solar and Tobar, 2025).

IQL's critics weigh every recorded action by on which side of the expectile it lies; one diffusion
model learns action and weight together. The policy π ∝ πβ w is reached by a reverse diffusion that
the model guides itself: it predicts the weight, and the gradient of its logarithm is the guidance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from acpo.actors import Denoised, Network
from acpo.algorithms.base import (
    COUNT,
    INSIDE,
    NOT_NEGATIVE,
    SHARE,
    STEP,
    About,
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
from acpo.algorithms.in_sample import Values
from acpo.denoising import StepNet, Steps, noise_loss, reverse, variance_preserving
from acpo.networks import MLP, TwinQ, normalize

# Residual blocks, and Fourier features of the step.
BLOCKS, FEATURES = 3, 128
# Where predicted weights are cut before their logarithm is taken.
WEIGHT_RANGE = (1e-4, 1.0)
# Recorded actions are pulled inside of this.
ACTION_LIMIT = 1.0 - 1e-5


class SWGState(NamedTuple):
    critics: Values
    target: TwinQ
    denoiser: StepNet
    average: StepNet
    """Running average of the denoiser; it acts."""
    optimisers: tuple[optax.OptState, optax.OptState]
    """Of critics and denoiser, which learn one after the other."""
    schedule: Schedule


@dataclass(frozen=True)
class SWG(Method):
    """min_θ E_{z=(a,w), t, ε}[‖ε_θ(z_t; s, t) − ε‖²], w = |τ − 1{A(s,a) ≤ 0}|, and actions by the
    reverse diffusion under ε_θ − ρ √(1 − ᾱ_t) ∇_z log ŵ_θ(z_t; s, t).
    """

    about: ClassVar[About] = About(
        paper="Diffusion Self-Weighted Guidance for Offline RL (Tagle et al.)",
        year=2025,
        family="diffusion",
        constrains="πθ to πβ w by a guided diffusion model of actions and weights",
        networks="twin Q, V, residual denoiser",
        source='authors\' "Self-Weighted Guidance" in JAX: configs/D4RL, scripts/evaluate.py',
    )
    # The authors' code. It evaluates ρ = 1, 5, 10, 15, 20, 25 and 30 for every task and does not
    # say which of them their tables report; its AntMaze is v0. No run on NeoRL2 was found.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "antmaze": {"expectile": 0.9, "reward_scale": 1.0, "relabel": "reward - 1"},
        "kitchen": {"reward_scale": 1.0},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **Method.limits,
        "expectile": INSIDE,
        "critic_share": SHARE,
        "dropout": SHARE,
        "diffusion_steps": COUNT,
        "guidance": NOT_NEGATIVE,
        "critic_batch_size": COUNT,
        "average": STEP,
        "decay_steps": COUNT,
        "weight_decay": NOT_NEGATIVE,
    }

    expectile: float = 0.7
    """τ of V's expectile regression, and of the weight."""
    guidance: float = 1.0
    """ρ, the scale of the guidance when acting; 1 aims at πβ w, 0 at πβ."""
    diffusion_steps: int = 15
    """T, the steps from data to noise and back."""
    critic_share: float = 1.0 / 3.0
    """First share of the run, in which the critics learn, as the denoiser does afterwards; until
    then the policy is an untrained one's. (The authors' evaluate.py takes critics of a half.)"""
    critic_batch_size: int = 256
    """Transitions of a batch that the critics learn from; all of a smaller batch."""
    batch_size: int = 1024
    """Transitions per update."""
    dropout: float = 0.1
    """Share of each residual block's inputs that is dropped in training."""
    average: float = 1e-3
    """Rate of the running average of the denoiser."""
    decay_steps: int = 3_000_000
    """Steps of the denoiser over which its step size would fall to 0 by a cosine."""
    weight_decay: float = 1e-4
    """Decay of the denoiser's parameters, per step and unit of step size (AdamW)."""
    reward_scale: float | None = None
    """Factor on rewards. None: so that episode returns span a range of 1000."""

    @property
    def steps(self) -> Steps:
        return variance_preserving(self.diffusion_steps)

    def init(self, key: Array, spec: Spec) -> SWGState:
        key_value, key_critic, key_denoiser = jax.random.split(key, 3)
        s, a = spec.observation_dim, spec.action_dim
        critics = Values(
            value=MLP.create(key_value, (s, *self.hidden, 1)),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1)),
        )
        denoiser = StepNet.create(key_denoiser, s, a + 1, self.hidden[-1], BLOCKS, FEATURES)
        adam = optax.scale_by_adam()
        return SWGState(
            critics=critics,
            target=critics.critic,
            denoiser=denoiser,
            average=denoiser,
            optimisers=(adam.init(critics), adam.init(denoiser)),
            schedule=Schedule.start(spec.total_steps),
        )

    def actor(self, state: SWGState) -> Denoised:
        """The guided reverse diffusion from z = 0 without noise, as the authors evaluate."""
        if state.schedule.step.ndim:  # seeds on a first axis
            return jax.vmap(self.actor)(state)
        net, (alpha, alpha_bar) = state.average, self.steps
        return Denoised(
            first=net.first.weights[0][: -len(net.time.biases[-1])],
            times=net.times(self.diffusion_steps),
            blocks=Network(
                tuple(w for block in net.blocks for w in block.weights),
                tuple(b for block in net.blocks for b in block.biases),
            ),
            head=Network(net.head.weights, net.head.biases),
            weight_head=Network(net.last_head.weights, net.last_head.biases),
            steps=jnp.stack([alpha, alpha_bar]),
            guidance=jnp.asarray([self.guidance, *WEIGHT_RANGE], jnp.float32),
        )

    # --- pieces ---------------------------------------------------------------------------------

    def value(self, net: MLP, observations: Array) -> Array:
        """V(s), of each observation less its mean over its deviation."""
        return net(normalize(observations))[..., 0]

    def weight(self, advantage: Array) -> Array:
        """w = τ where A > 0, 1 − τ elsewhere: πβ w is the policy whose value is V."""
        return jnp.where(advantage > 0, self.expectile, 1.0 - self.expectile)

    def guided_noise(self, net: StepNet, observations: Array, z: Array, t: Array) -> Array:
        """ε(z_t) − ρ √(1 − ᾱ_t) ∇_z log ŵ(z_t), ŵ = (w_t − √(1 − ᾱ_t) ε_w(z_t)) / √α_t, cut.

        E[w | z_t] has √ᾱ_t in place of √α_t; the gradient is the same but for where ŵ is cut.
        """
        alpha, sigma = jnp.asarray(self.steps.alpha)[t], jnp.asarray(self.steps.sigma)[t]
        time = net.times(self.diffusion_steps)[t]

        def log_weight(z: Array) -> tuple[Array, Array]:
            noise = net(z, observations, time)
            weight = (z[..., -1] - sigma * noise[..., -1]) * jax.lax.rsqrt(alpha)
            return jnp.log(jnp.clip(weight, *WEIGHT_RANGE)).sum(), noise

        gradient, noise = jax.grad(log_weight, has_aux=True)(z)
        return noise - self.guidance * sigma * gradient

    def act(self, net: StepNet, observations: Array, start: Array, noise: Array) -> Array:
        """z = (a, w) by the guided reverse diffusion from `start`, with `noise` on the way."""
        low, high = (
            jnp.array([end] * (start.shape[-1] - 1) + [weight])
            for end, weight in zip((-1.0, 1.0), WEIGHT_RANGE, strict=True)
        )
        predict = partial(self.guided_noise, net, observations)
        return reverse(predict, start, noise, self.steps, (low, high))

    # --- losses ---------------------------------------------------------------------------------

    def value_loss(self, v: Array, q: Array) -> tuple[Array, Metrics]:
        """L_V = E[|τ − 1{u < 0}| u²], u = min_i Q'_i(s,a) − V(s), Q' the targets."""
        u = jax.lax.stop_gradient(q.min(axis=0)) - v
        loss = jnp.mean(self.weight(u) * u**2)
        return loss, {"value/loss": loss, "value/v": v.mean()}

    def critic_loss(
        self, q: Array, rewards: Array, terminals: Array, next_v: Array
    ) -> tuple[Array, Metrics]:
        """L_Q = ½ Σ_i E[(r + γ (1 − terminal) V(s') − Q_i(s,a))²]."""
        target = bellman_target(rewards, terminals, next_v, self.gamma)
        loss = jnp.mean((target - q) ** 2)
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def denoiser_loss(
        self, net: StepNet, batch: Batch, weight: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """Σ_i E[(ε_i(z_t; s, t) − ε_i)²], z = (a, w), t uniform, ε ~ N(0, I)."""
        key_step, key_noise, key_drop = jax.random.split(key, 3)
        actions = jnp.clip(batch.actions, -ACTION_LIMIT, ACTION_LIMIT)
        z = jnp.concatenate([actions, weight[:, None]], axis=-1)
        t = jax.random.randint(key_step, weight.shape, 0, self.diffusion_steps)
        noise = jax.random.normal(key_noise, z.shape)
        s = batch.observations
        losses = noise_loss(net, z, s, self.steps, t, noise, self.dropout, key_drop)
        loss = losses.sum()
        return loss, {"denoiser/loss": loss, "denoiser/weight_loss": losses[-1]}

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: SWGState, batch: Batch, key: Array) -> tuple[SWGState, Metrics]:
        """A step on V and Q in the first share of the run, on the denoiser afterwards; what rests
        reports a loss of 0."""
        since = state.schedule.since(self.critic_share)
        state, metrics = jax.lax.cond(
            since < 0, self.critic_step, self.denoiser_step, state, batch, since, key
        )
        return state._replace(schedule=state.schedule.next()), metrics

    def critic_step(
        self, state: SWGState, batch: Batch, since: Array, key: Array
    ) -> tuple[SWGState, Metrics]:
        """V and Q at the same point; the authors' Q sees V's new weights."""
        some = jax.tree.map(lambda x: x[: self.critic_batch_size], batch)
        target_q = state.target(some.observations, some.actions)

        def total_loss(critics: Values) -> tuple[Array, Metrics]:
            v = self.value(critics.value, some.observations)
            next_v = self.value(critics.value, some.next_observations)
            q = critics.critic(some.observations, some.actions)
            value_loss, value_metrics = self.value_loss(v, target_q)
            critic_loss, critic_metrics = self.critic_loss(q, some.rewards, some.terminals, next_v)
            return value_loss + critic_loss, {**value_metrics, **critic_metrics}

        gradient, metrics = jax.grad(total_loss, has_aux=True)(state.critics)
        adam, resting = state.optimisers
        critics, adam = adam_step(state.critics, gradient, adam, jnp.float32(self.learning_rate))
        idle = {name: jnp.zeros(()) for name in ("denoiser/loss", "denoiser/weight_loss")}
        return state._replace(
            critics=critics,
            target=soft_update(state.target, critics.critic, self.tau),
            optimisers=(adam, resting),
        ), {**metrics, **idle}

    def denoiser_step(
        self, state: SWGState, batch: Batch, since: Array, key: Array
    ) -> tuple[SWGState, Metrics]:
        """AdamW on the denoiser, of actions and the weights that the resting critics give them."""
        q = state.target(batch.observations, batch.actions)
        v = self.value(state.critics.value, batch.observations)
        weight = self.weight(q.min(axis=0) - v)
        gradient, metrics = jax.grad(self.denoiser_loss, has_aux=True)(
            state.denoiser, batch, weight, key
        )
        rate = Schedule(since, jnp.int32(self.decay_steps)).cosine(self.learning_rate, 0.0)
        resting, adam = state.optimisers
        moved, adam = adam_step(state.denoiser, gradient, adam, rate)
        denoiser = jax.tree.map(
            lambda new, old: new - rate * self.weight_decay * old, moved, state.denoiser
        )
        idle = {name: jnp.zeros(()) for name in ("value/loss", "critic/loss")}
        return state._replace(
            denoiser=denoiser,
            average=soft_update(state.average, denoiser, self.average),
            optimisers=(resting, adam),
        ), {**metrics, **idle, "value/v": v.mean(), "critic/q": q.mean()}

    def diagnose(self, state: SWGState, batch: Batch, key: Array) -> Metrics:
        """What Q makes of the policy's actions beside recorded ones, and how far these are."""
        some = jax.tree.map(lambda x: x[: self.critic_batch_size], batch)
        s = some.observations
        q = state.target(s, some.actions)
        advantage = q.min(axis=0) - self.value(state.critics.value, s)
        nothing = jnp.zeros((self.diffusion_steps, 1, 1))
        z = self.act(state.average, s, jnp.zeros((len(s), some.actions.shape[-1] + 1)), nothing)
        return {
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(),
            "weights/good": jnp.mean(advantage > 0),
            "critic/q_min": q.min(),
            "critic/q_max": q.max(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
            "policy/gain": (state.target(s, z[:, :-1]).min(axis=0) - q.min(axis=0)).mean(),
            "policy/distance": jnp.sqrt(jnp.mean((z[:, :-1] - some.actions) ** 2)),
        }
