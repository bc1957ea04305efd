"""Fitting πβ: one loop for every density, with early stopping on held-out episodes.

πβ is fitted once and then frozen. What it says of each row is written beside the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo.behavior.config import BehaviorConfig
from acpo.behavior.density import Density, Exact
from acpo.behavior.models import make_density
from acpo.errors import Diverged
from acpo.files import load_arrays
from acpo.networks import Head
from acpo.storage import restore, save_tree

ROWS_AT_ONCE = 65_536
# An estimate runs L latents per row through wide layers.
ESTIMATES_AT_ONCE = 2_048
MAX_HELD_ROWS = 10_000
# The latents of row i come from fold_in(this, i): the same whichever rows are asked for with it.
ESTIMATE_SEED = 0


class FitState(NamedTuple):
    """Everything the fit needs to go on exactly where it stopped."""

    net: Any
    optimiser: optax.OptState
    best_net: Any
    """What is kept: of the best look, or of the last where none may end the fit."""
    best_log_prob: Array
    """Mean held-out score of `best_net`: log πβ(a|s) where it is exact, else the ELBO."""
    checks_since_best: Array
    step: Array


class Behavior(NamedTuple):
    """A fitted πβ. Observations are as its training data had them: normalised, if they were."""

    config: BehaviorConfig
    head: Head
    dims: tuple[int, int]
    """Numbers in an observation and in an action."""
    state: FitState
    held_out_log_prob: float
    """Mean log πβ(a|s) over held-out episodes as `log_prob` computes or estimates it; while an
    estimated density is being fitted, the ELBO's."""

    @property
    def density(self) -> Density:
        return make_density(self.config, self.head)

    @property
    def net(self) -> Any:
        return self.state.best_net

    @property
    def steps(self) -> int:
        return int(self.state.step)

    def annotate(self, observations: np.ndarray, actions: np.ndarray, first: int = 0) -> np.ndarray:
        """Per row: the parameters of πβ(·|s), if it has them, log πβ(a|s), and what is typical of
        it at s. float32.

        `first` is the number of the first row, which decides the latents of an estimate.
        """
        return self._of_rows(_annotation, observations, actions, first)

    def log_prob(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """[rows] log πβ(a|s)."""
        return self._of_rows(_log_prob, observations, actions)[:, 0]

    def _of_rows(
        self,
        ask: Callable[..., Array],
        observations: np.ndarray,
        actions: np.ndarray,
        first: int = 0,
    ) -> np.ndarray:
        density = self.density
        at_once = ROWS_AT_ONCE if isinstance(density, Exact) else ESTIMATES_AT_ONCE
        parts = [
            (
                part,
                ask(
                    self.net,
                    observations[part],
                    actions[part],
                    np.arange(first + part.start, first + part.stop),
                    density=density,
                ),
            )
            for part in _parts(len(actions), at_once)
        ]
        found = np.empty((len(actions), parts[0][1].shape[1]), np.float32)
        for part, annotation in parts:
            found[part] = annotation
        return found

    def log_mass(self, observations: np.ndarray, actions: np.ndarray, radius: float) -> np.ndarray:
        """[rows] The log-probability of the box around an action, of a Gaussian πβ."""
        p = self.head.parameters(self.net(jnp.asarray(observations)))
        return np.asarray(self.head.log_mass(p, jnp.asarray(actions), radius))

    def sample(self, observations: np.ndarray, seed: int = 0) -> np.ndarray:
        """One action per state."""
        key = jax.random.key(seed)
        return np.asarray(self.density.sample(self.net, jnp.asarray(observations), key))

    def save(self, path: Path) -> None:
        """Write a file that `load` needs nothing else for."""
        header = {
            "behavior": asdict(self.config),
            "head": asdict(self.head),
            "dims": self.dims,
            "held_out_log_prob": self.held_out_log_prob,
        }
        save_tree(path, self.state, header)


def load(path: Path) -> Behavior:
    """A saved πβ, finished or not."""
    arrays, header = load_arrays(path)
    stored = header["behavior"]
    hidden = tuple(stored["hidden"]) if stored["hidden"] else None
    config = BehaviorConfig(**{**stored, "hidden": hidden})
    head = Head(**header["head"])
    dims = (header["dims"][0], header["dims"][1])
    like = init(config, head, jax.random.key(0), *dims)
    return Behavior(config, head, dims, restore(path, arrays, like), header["held_out_log_prob"])


def _parts(rows: int, at_once: int) -> Iterator[slice]:
    """Slices of one length: the last reaches back, so that one compilation serves all."""
    count = -(-rows // at_once)
    size = -(-rows // count)
    for i in range(count):
        start = min(i * size, rows - size)
        yield slice(start, start + size)


@partial(jax.jit, static_argnames="density")
def _annotation(
    net: Any, observations: Array, actions: Array, rows: Array, density: Density
) -> Array:
    def typical(observation: Array, action: Array, row: Array) -> Array:
        key = jax.random.fold_in(_key(row), 1)
        return density.typical_log_prob(net, observation[None], action[None], key)

    found = [
        _log_prob(net, observations, actions, rows, density),
        jax.vmap(typical)(observations, actions, rows),
    ]
    if isinstance(density, Exact):
        found.insert(0, density.parameters(net, observations))
    return jnp.concatenate(found, axis=-1)


@partial(jax.jit, static_argnames="density")
def _log_prob(
    net: Any, observations: Array, actions: Array, rows: Array, density: Density
) -> Array:
    """[rows, 1]"""

    def of_row(observation: Array, action: Array, row: Array) -> Array:
        return density.log_prob(net, observation[None], action[None], _key(row))

    return jax.vmap(of_row)(observations, actions, rows)


def _key(row: Array) -> Array:
    """What an estimate draws on is a function of the row, however rows are parted."""
    return jax.random.fold_in(jax.random.key(ESTIMATE_SEED), row)


def looked_at(held_rows: np.ndarray) -> np.ndarray:
    """`MAX_HELD_ROWS` of them at most, evenly spaced: enough for a mean."""
    return held_rows[:: -(-len(held_rows) // MAX_HELD_ROWS)]


def init(
    config: BehaviorConfig, head: Head, key: Array, observation_dim: int, action_dim: int
) -> FitState:
    net = make_density(config, head).init(key, observation_dim, action_dim)
    return FitState(
        net=net,
        optimiser=optax.adam(config.learning_rate).init(net),
        best_net=net,
        best_log_prob=jnp.float32(-jnp.inf),
        checks_since_best=jnp.int32(0),
        step=jnp.int32(0),
    )


@partial(jax.jit, static_argnames=("config", "density"))
def _fit_until_check(
    state: FitState,
    key: Array,
    observations: Array,
    actions: Array,
    train_rows: Array,
    held_rows: Array,
    config: BehaviorConfig,
    density: Density,
) -> FitState:
    """`check_every` steps down the loss, then one look at the held-out rows."""
    optimiser = optax.adam(config.learning_rate)
    shape = (config.check_every, config.batch_size)
    key_rows = jax.random.fold_in(key, state.step)
    chosen = jax.random.randint(key_rows, shape, 0, len(train_rows))
    keys = jax.random.split(jax.random.fold_in(key_rows, 1), config.check_every)

    def step(
        carry: tuple[Any, optax.OptState], xs: tuple[Array, Array]
    ) -> tuple[tuple[Any, optax.OptState], None]:
        (net, optimiser_state), (index, key) = carry, xs
        rows = train_rows[index]
        gradient = jax.grad(density.loss)(net, observations[rows], actions[rows], key)
        updates, optimiser_state = optimiser.update(gradient, optimiser_state)
        return (optax.apply_updates(net, updates), optimiser_state), None

    (net, optimiser_state), _ = jax.lax.scan(step, (state.net, state.optimiser), (chosen, keys))
    # Every look draws the same latents, so that two looks differ by their nets alone.
    log_prob = density.score(net, observations[held_rows], actions[held_rows], key).mean()
    better = log_prob > state.best_log_prob + config.min_gain
    if config.patience == 0:
        better = jnp.bool_(True)
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
    on_check: Callable[[Behavior], None] = lambda behavior: None,
) -> Behavior:
    """Descend the density's loss with early stopping on `held_rows`, from `state` if given.

    Without patience it never stops early, and every look counts as the best.
    """
    dims = (observations.shape[1], actions.shape[1])
    density = make_density(config, head)
    if state is None:
        state = init(config, head, key, *dims)
    held_rows = looked_at(held_rows)
    device = [jnp.asarray(x) for x in (observations, actions, train_rows, held_rows)]
    # Configs that differ only in when to stop share one compiled program.
    compiled = replace(config, max_steps=1, patience=min(config.patience, 1))
    behavior = Behavior(config, head, dims, state, float(state.best_log_prob))
    patience = max(config.patience, 1)
    while state.step < config.max_steps and state.checks_since_best < patience:
        state = _fit_until_check(state, key, *device, config=compiled, density=density)
        behavior = behavior._replace(state=state, held_out_log_prob=float(state.best_log_prob))
        on_check(behavior)
    if not np.isfinite(state.best_log_prob):
        raise Diverged(
            f"The behaviour density could not be fitted: in {int(state.step):,} steps its "
            "log-density of held-out actions was never a finite number. A smaller "
            "--behavior.learning-rate usually helps."
        )
    if not isinstance(density, Exact):
        # The ELBO told when to stop; the estimate is what will be compared with ε.
        estimate = behavior.log_prob(observations[held_rows], actions[held_rows]).mean()
        behavior = behavior._replace(held_out_log_prob=float(estimate))
    return behavior
