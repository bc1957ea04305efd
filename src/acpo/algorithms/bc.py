"""Behaviour cloning: unweighted regression, max_θ E_D[log πθ(a|s)] (w = 1 in Eq-wBC-Obj)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo.algorithms.base import (
    About,
    Algorithm,
    Batch,
    Metrics,
    Schedule,
    Size,
    Spec,
    adam_step,
)
from acpo.behavior.config import BehaviorConfig
from acpo.errors import UserError
from acpo.networks import MLP, Head, HeadKind


class BCState(NamedTuple):
    actor: MLP
    average: MLP
    """Running average of the actor; the policy that is evaluated and saved."""
    optimiser: optax.OptState
    schedule: Schedule


@dataclass(frozen=True)
class BC(Algorithm):
    """max_θ E_D[log πθ(a|s)]: the baseline every offline method has to beat."""

    about: ClassVar[About] = About(
        paper="A Framework for Behavioural Cloning (Bain & Sammut)",
        year=1995,
        family="weighted BC",
        constrains="πθ to the data's actions, all alike",
        networks="π",
        source="as ACPO's policy",
    )

    learning_rate: float = 5e-4
    """Adam's step size at the start …"""
    final_learning_rate: float = 1e-4
    """… and at the end of the run, by a cosine."""
    actor_average: float = 0.2
    """What is evaluated and saved is an average of πθ over this share of the steps so far, as in
    ACPO; 0: πθ itself."""
    batch_size: int = 256
    """Transitions per update."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of the actor."""
    head: Literal["plain", "squashed", "auto"] = "auto"
    """Action distribution. auto: the head that gives held-out actions more mass."""
    log_std_min: float = -5.0
    """Lower bound of log σ."""
    log_std_max: float = 2.0
    """Upper bound of log σ."""
    normalize_observations: bool = True
    """Z-score observations with the data's mean and deviation; the policy carries both."""
    behavior: BehaviorConfig = field(default_factory=BehaviorConfig)
    """How the two heads are compared where head is auto."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.behavior.model != "gaussian":
            raise UserError(
                f"--behavior {self.behavior.model} has no use in bc, which asks for no density; "
                "leave it out, or choose another --algorithm."
            )

    @property
    def policy_head(self) -> Head:
        return Head.settled(self.head, self.log_std_min, self.log_std_max)

    def behavior_head(self, kind: str) -> Head:
        return Head.settled(kind, self.log_std_min, self.log_std_max)

    def settled(self, head: HeadKind, log_beta: np.ndarray, size: Size) -> Self:
        return replace(self, head=head)

    def init(self, key: Array, spec: Spec) -> BCState:
        actor = MLP.create(key, (spec.observation_dim, *self.hidden, 2 * spec.action_dim))
        optimiser = optax.scale_by_adam().init(actor)
        return BCState(actor, actor, optimiser, Schedule.start(spec.total_steps))

    def actor(self, state: BCState) -> MLP:
        return state.average

    def policy_loss(self, actor: MLP, batch: Batch) -> tuple[Array, Metrics]:
        """−E_D[log πθ(a|s)]."""
        policy = self.policy_head.parameters(actor(batch.observations))
        loss = -jnp.mean(self.policy_head.log_prob(policy, batch.actions))
        return loss, {"policy/loss": loss}

    def update(self, state: BCState, batch: Batch, key: Array) -> tuple[BCState, Metrics]:
        gradient, metrics = jax.grad(self.policy_loss, has_aux=True)(state.actor, batch)
        rate = state.schedule.cosine(self.learning_rate, self.final_learning_rate)
        actor, optimiser = adam_step(state.actor, gradient, state.optimiser, rate)
        average = state.schedule.average(state.average, actor, self.actor_average)
        return BCState(actor, average, optimiser, state.schedule.next()), metrics

    def diagnose(self, state: BCState, batch: Batch, key: Array) -> Metrics:
        policy = self.policy_head.parameters(state.actor(batch.observations))
        _, log_pi = self.policy_head.sample_with_log_prob(
            policy, jax.random.normal(key, batch.actions.shape)
        )
        return {"policy/entropy": -log_pi.mean(), "policy/log_std": policy.log_std.mean()}
