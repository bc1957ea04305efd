"""BCQ: Batch-Constrained deep Q-learning, in continuous actions (Fujimoto et al., 2019).

A conditional variational auto-encoder proposes actions that the data could hold, a network ξ moves
each by at most Φ, and Q chooses among them: maximisation without leaving the data's support.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo.actors import BestOf, Network
from acpo.algorithms.base import (
    ABOVE_0,
    COUNT,
    LAYERS,
    NOT_NEGATIVE,
    UNIT,
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
from acpo.behavior.cvae import LATENT_CLIP, CVAEDensity, CVAENet
from acpo.networks import MLP, TwinQ

# The saved policy is a function: its latents are drawn once, with this seed.
ACTING_SEED = 0


class Trained(NamedTuple):
    """What the optimiser moves."""

    vae: CVAENet
    perturbation: MLP
    critic: TwinQ


class Target(NamedTuple):
    perturbation: MLP
    critic: TwinQ


class BCQState(NamedTuple):
    trained: Trained
    target: Target
    optimiser: optax.OptState
    schedule: Schedule


@dataclass(frozen=True)
class BCQ(Method):
    """π(s) = a_i + ξ(s,a_i) of the largest Q_1, a_i ~ CVAE(s), |ξ| ≤ Φ; ξ by max E[Q_1(s, a + ξ)].

    The auto-encoder is trained along with the rest.
    """

    about: ClassVar[About] = About(
        paper="Off-Policy Deep RL without Exploration (Fujimoto et al.)",
        year=2019,
        family="support",
        constrains="actions to a CVAE's proposals, moved by at most Φ",
        networks="CVAE, perturbation ξ, two Q",
        source="sfujim/BCQ, continuous_BCQ; D4RL's evaluation of it takes the same in every suite",
    )
    # D4RL's authors ran BCQ in AntMaze and Kitchen with these defaults and raw rewards
    # (rail-berkeley/d4rl_evaluations, bcq/main.py); NeoRL2's did not run it.
    settings: ClassVar[dict[str, dict[str, Any]]] = {"antmaze": {}, "kitchen": {}}
    limits: ClassVar[dict[str, Limit]] = {
        **Method.limits,
        "lam": UNIT,
        "phi": NOT_NEGATIVE,
        "beta": ABOVE_0,
        "vae_hidden": LAYERS,
        "candidates": COUNT,
        "acting_candidates": COUNT,
    }

    learning_rate: float = 1e-3
    """Adam's step size."""
    batch_size: int = 100
    """Transitions per update."""
    hidden: tuple[int, ...] = (400, 300)
    """Hidden layers of perturbation and critics."""
    phi: float = 0.05
    """Φ, the most that an action is moved by, in units of half the action range."""
    lam: float = 0.75
    """λ, weight of the smaller of the two Q in the target; the larger has 1 − λ."""
    candidates: int = 10
    """n, actions that the target takes the best of."""
    acting_candidates: int = 100
    """Actions that the policy takes the best of."""
    vae_hidden: tuple[int, ...] = (750, 750)
    """Hidden layers of the auto-encoder's two networks."""
    beta: float = 0.5
    """Price of the KL term in the auto-encoder's loss."""

    # --- pieces ---------------------------------------------------------------------------------

    @property
    def density(self) -> CVAEDensity:
        return CVAEDensity(hidden=self.vae_hidden, beta=self.beta)

    def init(self, key: Array, spec: Spec) -> BCQState:
        key_vae, key_perturbation, key_critic = jax.random.split(key, 3)
        s, a = spec.observation_dim, spec.action_dim
        trained = Trained(
            vae=self.density.init(key_vae, s, a),
            perturbation=MLP.create(key_perturbation, (s + a, *self.hidden, a)),
            critic=TwinQ.create(key_critic, (s + a, *self.hidden, 1)),
        )
        return BCQState(
            trained=trained,
            target=Target(trained.perturbation, trained.critic),
            optimiser=optax.scale_by_adam().init(trained),
            schedule=Schedule.start(spec.total_steps),
        )

    def actor(self, state: BCQState) -> BestOf:
        vae, perturbation, critic = state.trained
        # States of several seeds come stacked; each seed's policy gets the same latents.
        *seeds, action_dim = vae.decoder.biases[-1].shape
        rng = np.random.default_rng(ACTING_SEED)
        drawn = rng.standard_normal((self.acting_candidates, 2 * action_dim), np.float32)
        latents = np.clip(drawn, -LATENT_CLIP, LATENT_CLIP)
        return BestOf(
            decoder=Network(vae.decoder.weights, vae.decoder.biases),
            perturbation=Network(perturbation.weights, perturbation.biases),
            critic=Network(critic.q1.weights, critic.q1.biases),
            latents=np.broadcast_to(latents, (*seeds, *latents.shape)),
            phi=np.full((*seeds, 1), self.phi, np.float32),
        )

    def perturb(self, perturbation: MLP, observations: Array, actions: Array) -> Array:
        """a + ξ(s,a) within the action box, ξ = Φ tanh(…)."""
        moved = self.phi * jnp.tanh(perturbation(jnp.concatenate([observations, actions], axis=-1)))
        return jnp.clip(actions + moved, -1.0, 1.0)

    # --- losses ---------------------------------------------------------------------------------

    def vae_loss(self, vae: CVAENet, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        """E_D[(a − d(s,z))² + β KL(q(z|s,a) ‖ N(0, I))], z ~ q, both averaged over dimensions."""
        loss = self.density.loss(vae, batch.observations, batch.actions, key)
        return loss, {"vae/loss": loss}

    def critic_loss(
        self, q: Array, rewards: Array, terminals: Array, next_q: Array
    ) -> tuple[Array, Metrics]:
        """Σ_i (r + γ (1 − terminal) max_j [λ min_k Q'_k + (1−λ) max_k Q'_k](s',a'_j) − Q_i(s,a))².

        `next_q` [2, rows, n] are the target critics at the candidates a'_j.
        """
        soft = self.lam * next_q.min(axis=0) + (1.0 - self.lam) * next_q.max(axis=0)
        target = bellman_target(rewards, terminals, soft.max(axis=-1), self.gamma)
        loss = jnp.mean(jnp.sum((target - q) ** 2, axis=0))
        return loss, {"critic/loss": loss, "critic/q": q.mean()}

    def policy_loss(self, q1: Array) -> tuple[Array, Metrics]:
        """−E_D[Q_1(s, a + ξ(s,a))], a ~ CVAE(s); of ξ alone."""
        loss = -q1.mean()
        return loss, {"policy/loss": loss}

    # --- one step -------------------------------------------------------------------------------

    def update(self, state: BCQState, batch: Batch, key: Array) -> tuple[BCQState, Metrics]:
        """One gradient step on auto-encoder, critics and ξ, one soft target update.

        The gradients are taken at the same point; the authors' code takes the steps in this order.
        """
        key_vae, key_next, key_now = jax.random.split(key, 3)
        rows, action_dim = batch.actions.shape
        noise_next = jax.random.normal(key_next, (rows, self.candidates, 2 * action_dim))
        noise_now = jax.random.normal(key_now, (rows, 1, 2 * action_dim))

        # The state beside each candidate, as far as networks of both ask for it.
        following = jnp.repeat(batch.next_observations[:, None], self.candidates, axis=1)
        proposed = self.density.propose(state.trained.vae, batch.next_observations, noise_next)
        next_actions = self.perturb(state.target.perturbation, following, proposed)
        next_q = state.target.critic(following, next_actions)
        proposed_now = self.density.propose(state.trained.vae, batch.observations, noise_now)[:, 0]

        def total_loss(trained: Trained) -> tuple[Array, Metrics]:
            q = trained.critic(batch.observations, batch.actions)
            actions = self.perturb(trained.perturbation, batch.observations, proposed_now)
            frozen = state.trained.critic.q1
            q1 = frozen(jnp.concatenate([batch.observations, actions], axis=-1))

            vae_loss, vae_metrics = self.vae_loss(trained.vae, batch, key_vae)
            critic_loss, critic_metrics = self.critic_loss(
                q, batch.rewards, batch.terminals, next_q
            )
            policy_loss, policy_metrics = self.policy_loss(q1)
            metrics = {**vae_metrics, **critic_metrics, **policy_metrics}
            return vae_loss + critic_loss + policy_loss, metrics

        gradient, metrics = jax.grad(total_loss, has_aux=True)(state.trained)
        rate = jnp.float32(self.learning_rate)
        trained, optimiser = adam_step(state.trained, gradient, state.optimiser, rate)
        target = soft_update(state.target, Target(trained.perturbation, trained.critic), self.tau)
        return BCQState(trained, target, optimiser, state.schedule.next()), metrics

    def diagnose(self, state: BCQState, batch: Batch, key: Array) -> Metrics:
        """What the policy gains over the data by Q, and how much of its box ξ uses."""
        vae, perturbation, critic = state.trained
        rows, action_dim = batch.actions.shape
        noise = jax.random.normal(key, (rows, self.candidates, 2 * action_dim))
        here = jnp.repeat(batch.observations[:, None], self.candidates, axis=1)
        proposed = self.density.propose(vae, batch.observations, noise)
        actions = self.perturb(perturbation, here, proposed)
        q = critic(batch.observations, batch.actions)
        advantage = critic(here, actions)[0].max(axis=-1) - q[0]
        return {
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(),
            "critic/q_min": q.min(),
            "critic/q_max": q.max(),
            "critic/disagreement": jnp.abs(q[0] - q[1]).mean(),
            "policy/moved": jnp.abs(actions - proposed).mean(),
            "policy/spread": proposed.std(axis=1).mean(),
        }
