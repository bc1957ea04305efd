"""Gaussian behaviour density πβ(a|s), fitted once by maximum likelihood and then frozen.

    L(πβ) = E_{(s,a)~D}[−log πβ(a|s)]                                        (Eq-Behavior-Loss)

Being frozen, its mean and log σ at every dataset state are computed once and stored beside the
row, so that no behaviour network runs inside the training loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo.networks import MLP, Gaussian, Head

ROWS_AT_ONCE = 65_536
MAX_HELD_ROWS = 10_000


@dataclass(frozen=True)
class BehaviorConfig:
    """How πβ is fitted."""

    hidden: tuple[int, ...] = (512, 512)
    """Hidden layers of πβ."""
    learning_rate: float = 1e-3
    """Adam's step size for πβ."""
    batch_size: int = 256
    """Rows per step."""
    max_steps: int = 10_000
    """N_β at most, rounded up to a look; early stopping usually ends sooner."""
    check_every: int = 500
    """Steps between two looks at the held-out episodes."""
    patience: int = 4
    """Looks without improvement before stopping; the best look is kept."""
    min_gain: float = 0.01
    """Nats of mean held-out log πβ that count as an improvement."""
    held_out: float = 0.1
    """Share of episodes held out for early stopping."""


class FitState(NamedTuple):
    """Everything the fit needs to go on exactly where it stopped."""

    net: MLP
    optimiser: optax.OptState
    best_net: MLP
    best_log_prob: Array
    """Mean held-out log πβ(a|s) of `best_net`."""
    checks_since_best: Array
    step: Array


class GaussianBehavior(NamedTuple):
    """A fitted πβ."""

    net: MLP
    head: Head
    held_out_log_prob: float
    """Mean log πβ(a|s) over held-out episodes."""
    steps: int
    state: FitState

    def annotate(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Per row: mean and log σ of πβ(·|s), then log πβ(a|s). float32 [N, 2·a_dim + 1]."""
        rows = len(actions)
        parts = -(-rows // ROWS_AT_ONCE)
        size = -(-rows // parts)
        found = np.empty((rows, 2 * actions.shape[1] + 1), np.float32)
        for i in range(parts):
            # The last part reaches back into the one before: one shape, one compilation.
            start = min(i * size, rows - size)
            part = slice(start, start + size)
            found[part] = _annotation(self.net, observations[part], actions[part], head=self.head)
        return found


@partial(jax.jit, static_argnames="head")
def _annotation(net: MLP, observations: Array, actions: Array, head: Head) -> Array:
    p = head.parameters(net(observations))
    return jnp.concatenate([*p, head.log_prob(p, actions)[:, None]], axis=-1)


def annotated(annotation: Array) -> Gaussian:
    """The parameters of πβ(·|s), read back from a row's annotation without its log πβ(a|s)."""
    return Gaussian(*jnp.split(annotation, 2, axis=-1))


def init(config: BehaviorConfig, key: Array, observation_dim: int, action_dim: int) -> FitState:
    net = MLP.create(key, (observation_dim, *config.hidden, 2 * action_dim))
    return FitState(
        net=net,
        optimiser=optax.adam(config.learning_rate).init(net),
        best_net=net,
        best_log_prob=jnp.float32(-jnp.inf),
        checks_since_best=jnp.int32(0),
        step=jnp.int32(0),
    )


def negative_log_likelihood(net: MLP, head: Head, observations: Array, actions: Array) -> Array:
    """E[−log πβ(a|s)] over a batch   (Eq-Behavior-Loss)."""
    return -jnp.mean(head.log_prob(head.parameters(net(observations)), actions))


@partial(jax.jit, static_argnames=("config", "head"))
def _fit_until_check(
    state: FitState,
    key: Array,
    observations: Array,
    actions: Array,
    train_rows: Array,
    held_rows: Array,
    config: BehaviorConfig,
    head: Head,
) -> FitState:
    """`check_every` steps of maximum likelihood, then one look at the held-out rows."""
    optimiser = optax.adam(config.learning_rate)
    shape = (config.check_every, config.batch_size)
    chosen = jax.random.randint(jax.random.fold_in(key, state.step), shape, 0, len(train_rows))

    def step(
        carry: tuple[MLP, optax.OptState], index: Array
    ) -> tuple[tuple[MLP, optax.OptState], None]:
        net, optimiser_state = carry
        rows = train_rows[index]
        gradient = jax.grad(negative_log_likelihood)(net, head, observations[rows], actions[rows])
        updates, optimiser_state = optimiser.update(gradient, optimiser_state)
        return (optax.apply_updates(net, updates), optimiser_state), None

    (net, optimiser_state), _ = jax.lax.scan(step, (state.net, state.optimiser), chosen)
    log_prob = -negative_log_likelihood(net, head, observations[held_rows], actions[held_rows])
    better = log_prob > state.best_log_prob + config.min_gain
    return FitState(
        net=net,
        optimiser=optimiser_state,
        best_net=jax.tree.map(partial(jnp.where, better), net, state.best_net),
        best_log_prob=jnp.where(better, log_prob, state.best_log_prob),
        checks_since_best=jnp.where(better, 0, state.checks_since_best + 1),
        step=state.step + config.check_every,
    )


def fit(
    config: BehaviorConfig,
    head: Head,
    observations: np.ndarray,
    actions: np.ndarray,
    train_rows: np.ndarray,
    held_rows: np.ndarray,
    key: Array,
    *,
    state: FitState | None = None,
    on_check: Callable[[FitState], None] = lambda state: None,
) -> GaussianBehavior:
    """Maximum likelihood with early stopping on `held_rows`, going on from `state` if given.

    At most `MAX_HELD_ROWS` held-out rows are looked at, evenly spaced: enough for a mean.
    """
    if state is None:
        state = init(config, key, observations.shape[1], actions.shape[1])
    held_rows = held_rows[:: -(-len(held_rows) // MAX_HELD_ROWS)]
    device = [jnp.asarray(x) for x in (observations, actions, train_rows, held_rows)]
    # Configs that differ only in when to stop share one compiled program.
    compiled = replace(config, max_steps=0, patience=0)
    while state.step < config.max_steps and state.checks_since_best < config.patience:
        state = _fit_until_check(state, key, *device, config=compiled, head=head)
        on_check(state)
    return GaussianBehavior(
        state.best_net, head, float(state.best_log_prob), int(state.step), state
    )
