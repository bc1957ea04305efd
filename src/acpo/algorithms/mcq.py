"""MCQ: Mildly Conservative Q-learning (Lyu et al., 2022), on top of SAC.

Actions of the policy are trained on, too: their Q is regressed to the best Q among actions that a
conditional variational auto-encoder of the data proposes, so it can rise as far as these do.
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
    LAYERS,
    NOT_NEGATIVE,
    STEP,
    About,
    Batch,
    Limit,
    Metrics,
    Spec,
    bellman_target,
    gradient_by_blocks,
)
from acpo.algorithms.soft import Soft, SoftState, repeated
from acpo.behavior.cvae import CVAEDensity, CVAENet
from acpo.networks import MLP, Gaussian, TwinQ

# With a margin, actions of the policy whose squared distance to a proposed one is less are spared.
NEAR = 0.1


class Trained(NamedTuple):
    """What the optimiser moves."""

    actor: MLP
    critic: TwinQ
    vae: CVAENet
    log_alpha: Array
    """Of SAC's temperature α."""


class Draws(NamedTuple):
    """Standard normal numbers of one update, rows first and then s or s'."""

    policy: Array
    drawn: Array
    latents: Array


@dataclass(frozen=True)
class MCQ(Soft):
    """min_Q Σ_i λ E_D[(Q_i − y)²] + (1−λ) E_{a~π}[(Q_i(s,a) − min_k max_{a'~CVAE(s)} Q_k(s,a'))²].

    π and α as in SAC. The auto-encoder is trained along with the rest.
    """

    about: ClassVar[About] = About(
        paper="Mildly Conservative Q-learning for Offline RL (Lyu et al.)",
        year=2022,
        family="conservative value",
        constrains="Q: on the policy's actions to the best of a CVAE's",
        networks="π, two Q, CVAE",
        source="dmksjfl/MCQ, MCQ_config.py and README; NeoRL2's logs",
    )
    # λ is 0.7 in the authors' config and 0.9 in the README's command, which is for the task below.
    # The margin and its tasks are in the authors' code (MCQ.py) alone. They ran neither AntMaze,
    # where reward and floor are those of OfflineRL-Kit's run_mcq.py and not its λ of 0.9, nor
    # Kitchen. NeoRL2: of each task's runs (polixir/NeoRL2, benchmark/results/*-mcq) the setting of
    # the best mean, which is the one that benchmark reports. Both codes are besides another MCQ:
    # β 1, the targets' Q for proposed actions, one policy action per state, α at most 1. Where
    # rewards are negative a floor would raise Q.
    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "hopper-medium-v2": {"margin": 5.0},
        "hopper-medium-replay-v2": {"lam": 0.9},
        "hopper-medium-expert-v2": {"margin": 5.0},
        "halfcheetah-medium-expert-v2": {"margin": 5.0},
        "antmaze": {"floor": None, "relabel": "reward - 1"},
        "neorl2": {"floor": None},
        "DMSD": {"lam": 0.95, "alpha": 0.2},
        "Fusion": {"lam": 0.95},
        "Pipeline": {"lam": 0.9, "alpha": 0.2},
        "RandomFrictionHopper": {"lam": 0.9},
        "RocketRecovery": {"lam": 0.4, "alpha": 0.2},
        "SafetyHalfCheetah": {"lam": 0.3},
        "Simglucose": {"lam": 0.5},
    }
    limits: ClassVar[dict[str, Limit]] = {
        **Soft.limits,
        "lam": STEP,
        "samples": COUNT,
        "alpha": ABOVE_0,
        "margin": NOT_NEGATIVE,
        "vae_hidden": LAYERS,
        "vae_learning_rate": ABOVE_0,
    }

    # The authors' network makes three layers of its "layer_num = 2"; OfflineRL-Kit and NeoRL2's
    # benchmark take two.
    hidden: tuple[int, ...] = (400, 400)
    """Hidden layers of policy and critics."""
    lam: float = 0.7
    """λ, weight of the data's actions in the critics' loss; the policy's have 1 − λ."""
    samples: int = 10
    """N, actions per state, of the policy and of the auto-encoder."""
    floor: float | None = 0.0
    """Least value that a policy's action is regressed to, in the authors' code. None: no bound."""
    margin: float | None = None
    """δ: Q of a policy's action far from the proposed one is only pressed down, and that to δ below
    the best; Q of those near is left alone. None: all are regressed to it, from both sides."""
    alpha: float | None = None
    """α, SAC's temperature. None: tuned to hold the entropy at −a_dim."""
    vae_hidden: tuple[int, ...] = (750, 750)
    """Hidden layers of the auto-encoder's two networks."""
    vae_learning_rate: float = 1e-3
    """Adam's step size for the auto-encoder."""

    # --- pieces ---------------------------------------------------------------------------------

    @property
    def density(self) -> CVAEDensity:
        """β is 2 as the authors add over dimensions, and latents have twice the actions'."""
        return CVAEDensity(hidden=self.vae_hidden, beta=2.0)

    def init(self, key: Array, spec: Spec) -> SoftState:
        key_actor, key_critic, key_vae = jax.random.split(key, 3)
        s, a = spec.observation_dim, spec.action_dim
        trained = Trained(
            actor=MLP.create(key_actor, (s, *self.hidden, 2 * a)),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1)),
            vae=self.density.init(key_vae, s, a),
            log_alpha=jnp.float32(0.0 if self.alpha is None else np.log(self.alpha)),
        )
        return SoftState.start(trained, spec)

    # --- losses ---------------------------------------------------------------------------------

    def critic_loss(
        self,
        q: Array,
        batch: Batch,
        next_value: Array,
        drawn_q: Array,
        proposed_q: Array,
        distance: Array,
    ) -> tuple[Array, Metrics]:
        """Σ_i λ E[(Q_i(s,a) − y)²] + (1−λ) E[(Q_i(s,ã_k) − max(floor, min_j max_k Q_j(s,â_k)))²].

        y = r + γ (1 − terminal) V(s'). `drawn_q` at ã ~ π and `proposed_q` at â ~ CVAE are
        [2, N, states], with s and s' among the states; `distance` is ‖ã_k − â_k‖². With a margin δ
        the second difference is [Q_i(s,ã_k) − max(…) + δ]₊ where the distance is at least 0.1.
        """
        target = bellman_target(batch.rewards, batch.terminals, next_value, self.gamma)
        best = jax.lax.stop_gradient(proposed_q.max(axis=1).min(axis=0))
        if self.floor is not None:
            best = jnp.maximum(best, self.floor)
        known = jnp.sum(jnp.mean((q - target) ** 2, axis=-1))
        above = drawn_q - best
        if self.margin is not None:
            above = jnp.where(distance >= NEAR, jnp.maximum(above + self.margin, 0.0), 0.0)
        drawn = jnp.sum(jnp.mean(above**2, axis=(1, 2)))
        loss = self.lam * known + (1.0 - self.lam) * drawn
        return loss, {
            "critic/loss": loss,
            "critic/q": q.mean(),
            "critic/q_policy": drawn_q.mean(),
            "critic/q_proposed": best.mean(),
        }

    def temperature_loss(
        self, log_alpha: Array, log_pi: Array, action_dim: int
    ) -> tuple[Array, Metrics]:
        """SAC's, unless α is given."""
        loss, metrics = super().temperature_loss(log_alpha, log_pi, action_dim)
        return loss if self.alpha is None else 0.0 * loss, metrics

    def vae_loss(self, vae: CVAENet, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        """E[Σ (a − d(s,z))² + Σ KL(q(z|s,a) ‖ N(0, I))], the sums over dimensions."""
        mean = self.density.loss(vae, batch.observations, batch.actions, key)
        loss = batch.actions.shape[-1] * mean
        return loss, {"behavior/loss": loss}

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: SoftState, batch: Batch, key: Array) -> tuple[SoftState, Metrics]:
        """One gradient step on critics, π, α and the auto-encoder, then one soft target update.

        All gradients are taken at the same point, where the authors take the steps one after
        another; the two critics see the same sampled actions, where they draw for each.
        """
        head = self.policy_head
        rows, action_dim = batch.actions.shape
        key_noise, key_drawn, key_latent, key_vae = jax.random.split(key, 4)
        drawn = (rows, 2, self.samples)  # at s and at s'
        draws = Draws(
            policy=jax.random.normal(key_noise, (rows, 2, action_dim)),
            drawn=jax.random.normal(key_drawn, (*drawn, action_dim)),
            latents=jax.random.normal(key_latent, (*drawn, 2 * action_dim)),
        )

        def total_loss(trained: Trained, rows: tuple[Batch, Draws]) -> tuple[Array, Metrics]:
            actor, critic, _, log_alpha = trained
            batch, draws = rows
            noise, next_noise = jnp.moveaxis(draws.policy, 1, 0)
            states = jnp.concatenate([batch.observations, batch.next_observations])
            latents = jnp.concatenate(jnp.moveaxis(draws.latents, 1, 0))
            proposed = self.density.propose(state.trained.vae, states, latents)
            proposed = jnp.swapaxes(proposed, 0, 1)
            proposed_q = state.trained.critic(repeated(states, proposed), proposed)

            policy = head.parameters(actor(batch.observations))
            following = jax.lax.stop_gradient(head.parameters(actor(batch.next_observations)))
            both = Gaussian(*map(jnp.concatenate, zip(policy, following, strict=True)))
            drawn_noise = jnp.swapaxes(jnp.concatenate(jnp.moveaxis(draws.drawn, 1, 0)), 0, 1)
            drawn = jax.lax.stop_gradient(head.sample(both, drawn_noise))
            actions, log_pi = head.sample_with_log_prob(policy, noise)
            next_actions, log_next = head.sample_with_log_prob(following, next_noise)
            next_q = state.target(batch.next_observations, next_actions).min(axis=0)

            next_value = next_q - jnp.exp(log_alpha) * log_next
            q = critic(batch.observations, batch.actions)
            drawn_q = critic(repeated(states, drawn), drawn)
            policy_q = jax.lax.stop_gradient(critic)(batch.observations, actions)

            distance = jnp.sum((drawn - proposed) ** 2, axis=-1)
            critic_loss, critic_metrics = self.critic_loss(
                q, batch, next_value, drawn_q, proposed_q, distance
            )
            policy_loss, policy_metrics = self.policy_loss(log_pi, log_alpha, policy_q.min(axis=0))
            loss, metrics = self.temperature_loss(log_alpha, log_pi, action_dim)
            metrics = {**critic_metrics, **policy_metrics, **metrics}
            return critic_loss + policy_loss + loss, metrics

        gradient, metrics = gradient_by_blocks(
            total_loss, state.trained, (batch, draws), inputs=2 * self.samples
        )
        of_vae, vae_metrics = jax.grad(self.vae_loss, has_aux=True)(
            state.trained.vae, batch, key_vae
        )
        gradient, metrics = gradient._replace(vae=of_vae), {**metrics, **vae_metrics}
        rate = self.learning_rate
        rates = (rate, rate, self.vae_learning_rate, rate)
        return state.stepped(gradient, rates, self.tau), metrics

    def diagnose(self, state: SoftState, batch: Batch, key: Array) -> Metrics:
        """What the policy's actions gain by Q, and how Q lies at random ones."""
        actor, critic, *_ = state.trained
        q, _, random_q, metrics = self.compared(critic, actor, batch, key)
        return {
            **metrics,
            "critic/q_random": random_q.mean(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
        }
