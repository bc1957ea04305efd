"""From a dataset to the rows an update draws from: everything settled once, before the loop."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.algorithms.base import Batch, Size
from acpo.behavior import fitting
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.density import Exact
from acpo.behavior.fitting import Behavior, FitState
from acpo.behavior.models import make_density
from acpo.data import Dataset
from acpo.data.combine import take
from acpo.data.inspect import Moments
from acpo.data.pairing import Transitions
from acpo.errors import UserError
from acpo.storage import load_tree

# πβ describes the data, not a run: it is fitted with this seed whatever the run's seeds are, so
# that seed k alone and seed k among others see the same density.
BEHAVIOR_SEED = 0
HEAD_TRIAL_STEPS = 1_000
# Heads are compared by the mass they give this neighbourhood of an action, in units of its box.
HEAD_RADIUS = 0.01
MAX_FIT_ROWS = 1_000_000


class Normalizer(NamedTuple):
    """Observations are used as (s − mean) / std; identity when switched off."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def fit(cls, data: Dataset, enabled: bool) -> Normalizer:
        """Statistics of the dataset's own rows; episodes held out for validation are not in it."""
        dim = data.observation_dim
        if not enabled:
            return cls(np.zeros(dim, np.float32), np.ones(dim, np.float32))
        moments = Moments(dim)
        for block in data.blocks():
            moments.add(block.observations)
        # A constant column carries nothing; leave its scale alone instead of dividing by zero. What
        # is small need not be constant; what is smaller than float32 resolves is rounding.
        resolved = moments.std > np.maximum(1e-7 * np.abs(moments.mean), 1e-30)
        std = np.where(resolved & (moments.high > moments.low), moments.std, 1.0)
        return cls(moments.mean.astype(np.float32), std.astype(np.float32))

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return (observations - self.mean) / self.std


class Layout(NamedTuple):
    """Where each field stands in a packed row."""

    observation_dim: int
    action_dim: int
    behavior_dim: int
    """How many numbers beside the row describe πβ(·|s)."""
    network: Any = None
    """πβ's frozen weights, where no numbers beside the row can stand for them."""

    @property
    def has_density(self) -> bool:
        return self.behavior_dim > 0 or self.network is not None

    @property
    def width(self) -> int:
        """Columns of a row: s, s', a, r, terminal; πβ's parameters, log πβ and what is typical."""
        density = self.behavior_dim + 2 if self.has_density else 0
        return 2 * self.observation_dim + self.action_dim + 2 + density

    def unpack(self, rows: Array) -> Batch:
        s, a, b, network = self
        ends = np.cumsum([s, s, a, 1, 1, b])
        columns = jnp.split(rows, ends, axis=-1)
        observations, following, actions, rewards, terminals, behavior, log_beta = columns
        return Batch(
            observations,
            actions,
            rewards[..., 0],
            following,
            terminals[..., 0],
            *(
                (behavior if b else network, log_beta[..., 0], log_beta[..., 1])
                if self.has_density
                else ()
            ),
        )


class Prepared(NamedTuple):
    """A dataset ready for the loop, and the algorithm with nothing left to settle."""

    algorithm: Any
    rows: np.ndarray
    """float32 [N, columns], one packed row per transition: one gather fetches a batch. A memory
    map where the rows are too many to hold."""
    layout: Layout
    normalizer: Normalizer
    facts: dict[str, Any]
    """What was settled from the data, for the run directory and the report."""


def prepare(
    data: Dataset,
    algorithm: Any,
    *,
    directory: Path | None = None,
    behavior_folder: Path | None = None,
    on_fit: Callable[[str, FitState], None] = lambda head, state: None,
    memory_gb: float = 1.0,
) -> Prepared:
    """Normalise, fit πβ, settle the open fields, pack the rows.

    A πβ in `behavior_folder` (by default behavior/ in `directory`) is taken, or gone on with.
    """
    facts: dict[str, Any] = {}
    normalizer = Normalizer.fit(data, algorithm.normalize_observations)

    if algorithm.reward_scale is None:
        scale = _reward_scale(data, algorithm.return_range)
        algorithm = dataclasses.replace(algorithm, reward_scale=scale)
    scale = algorithm.reward_scale
    low, high = (float(f(data.rewards)) * scale for f in (np.min, np.max))
    facts |= {"reward_scale": scale, "rewards": (low, high)}
    if algorithm.value_start is None:
        start = scale * _mean_value(data, algorithm.gamma)
        algorithm = dataclasses.replace(algorithm, value_start=start)
        facts["value_start"] = start

    layout = Layout(data.observation_dim, data.action_dim, 0)
    needs_density = algorithm.needs_density
    if needs_density or algorithm.head == "auto":
        fitted_to = fitting_rows(data, normalizer, algorithm.behavior.held_out)
        folder = behavior_folder or (directory / "behavior" if directory else None)
        behavior = fit_behavior(fitted_to, algorithm, folder, on_fit)
        held = fitting.looked_at(fitted_to.held_rows)
        log_beta = behavior.log_prob(fitted_to.observations[held], fitted_to.actions[held])
        size = Size(len(data), data.observation_dim, data.action_dim)
        algorithm = algorithm.settled(behavior.head.kind, log_beta, size)
        facts |= {
            "head": behavior.head.kind,
            "behavior_steps": behavior.steps,
            "behavior_held_out_log_prob": behavior.held_out_log_prob,
        }
    if needs_density:
        density = behavior.density
        if isinstance(density, Exact):
            layout = layout._replace(behavior_dim=density.width(data.action_dim))
        else:
            layout = layout._replace(network=jax.device_put(behavior.net))
    rows_before = 0

    def packed(block: Transitions) -> np.ndarray:
        nonlocal rows_before
        observations = normalizer(block.observations)
        columns = [
            observations,
            normalizer(block.next_observations),
            block.actions,
            (block.rewards * np.float32(scale))[:, None],
            block.terminals[:, None],
        ]
        if needs_density:
            columns.append(behavior.annotate(observations, block.actions, rows_before))
            rows_before += len(observations)
        return np.concatenate(columns, axis=1, dtype=np.float32)

    if 4 * layout.width * len(data) <= memory_gb * 2**30:
        (rows,) = map(packed, data.blocks(len(data)))
    else:
        rows = _on_disk(map(packed, data.blocks()), layout.width, directory)
    if algorithm.entropy_price is None:
        price = _entropy_price(data, rows, layout, algorithm)
        algorithm = dataclasses.replace(algorithm, entropy_price=price)
        facts["entropy_price"] = price
    return Prepared(algorithm, rows, layout, normalizer, facts)


def _on_disk(blocks: Iterator[np.ndarray], width: int, directory: Path | None) -> np.ndarray:
    """The blocks in a file without a name, which is gone with the process, as a memory map."""
    try:
        # The map outlives this call, and closes the file.
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)
        file.flush()
    except OSError as error:
        raise UserError(
            f"The packed rows could not be written in {directory or tempfile.gettempdir()}: "
            f"{error.strerror or error}. Free some space, or hold them in memory with a larger "
            "--memory-gb."
        ) from error
    return np.memmap(file, np.float32, "r").reshape(-1, width)


def _reward_scale(data: Dataset, return_range: float) -> float:
    spread = float(np.ptp(data.episode_returns))
    if spread <= 0:
        spread = float(np.abs(data.episode_returns).max())
    return return_range / spread if spread > 0 else 1.0


def _mean_value(data: Dataset, gamma: float) -> float:
    """The constant that satisfies Bellman's equation on the data's average.

    c = E[r] + γ (1 − P(terminal)) c. Without a discount and without an end there is none: 0.
    """
    ends = float(np.mean(data.terminals))
    forgotten = 1.0 - gamma * (1.0 - ends)
    return float(np.mean(data.rewards, dtype=np.float64)) / forgotten if forgotten > 0 else 0.0


def _entropy_price(data: Dataset, rows: np.ndarray, layout: Layout, algorithm: Any) -> float:
    """What a nat of entropy is worth in V's target, in α: min(1, 1/x²).

    x = σ[Σ_t γ^t α log πβ(a_t|s_t)] / σ[Σ_t γ^t r_t] over the data's rows: how far values differ by
    entropy alone, in units of how far they differ by reward. Below 1 entropy is a regulariser.
    Above, V looks for noise: in data half of which is random, at its random half. By 1/x both would
    differ alike, and cancel where the better policy is the narrower one; by 1/x² entropy has the
    less to say the more it would.
    """
    chosen = np.arange(len(data))
    if len(data) > MAX_FIT_ROWS:
        _, chosen = data.split(MAX_FIT_ROWS / len(data), BEHAVIOR_SEED)
    reward = 2 * layout.observation_dim + layout.action_dim
    columns = rows[chosen[:, None], [reward, reward + 1, -2]]
    rewards, terminals, log_beta = columns.T.astype(np.float64)
    borders = np.flatnonzero(np.diff(data.episode_ids[chosen])) + 1

    def spread(signal: np.ndarray) -> float:
        episodes = zip(np.split(signal, borders), np.split(terminals, borders), strict=True)
        return float(np.std([v for x, end in episodes for v in _values(x, end[-1], algorithm)]))

    by_entropy = spread(algorithm.alpha * np.asarray(algorithm.clip(log_beta)))
    by_reward = spread(rewards)
    if not 0.0 < by_reward < by_entropy:
        return 1.0
    return (by_reward / by_entropy) ** 2


def _values(signal: np.ndarray, terminal: float, algorithm: Any) -> list[float]:
    """Σ_k γ^k x_{t+k} of an episode, last row first.

    Where it was cut off it goes on at its own average; where nothing is discounted, not at all.
    """
    gamma = algorithm.gamma
    goes_on = not terminal and gamma < 1.0
    value = float(signal.mean()) / (1.0 - gamma) if goes_on else 0.0
    values = []
    for x in signal[::-1].tolist():
        value = x + gamma * value
        values.append(value)
    return values


class FittingRows(NamedTuple):
    """What a density is fitted to."""

    observations: np.ndarray
    actions: np.ndarray
    train_rows: np.ndarray
    held_rows: np.ndarray


def fitting_rows(data: Dataset, normalizer: Normalizer, held_out: float) -> FittingRows:
    """Rows to fit a density to, and rows of other episodes to judge it by.

    The latter are the validation episodes where the data comes with some, otherwise a share of
    its own. Of very much data a part is enough: whole episodes, drawn at random.
    """
    if len(data) > MAX_FIT_ROWS:
        data = take(data, MAX_FIT_ROWS / len(data), BEHAVIOR_SEED)
    observations, actions = normalizer(data.observations), data.actions
    held = data.validation
    if held is None:
        return FittingRows(observations, actions, *data.split(held_out, BEHAVIOR_SEED))
    return FittingRows(
        np.concatenate([observations, normalizer(held.observations)]),
        np.concatenate([actions, held.actions]),
        np.arange(len(data)),
        np.arange(len(data), len(data) + len(held)),
    )


def fit_behavior(
    rows: FittingRows,
    algorithm: Any,
    folder: Path | None = None,
    on_fit: Callable[[str, FitState], None] = lambda family, state: None,
) -> Behavior:
    """Fit πβ; where πθ's head is "auto", it is chosen first, by two short Gaussian fits.

    It becomes the head that gives more mass to the neighbourhood of held-out actions. Densities
    would not do: at the bounds a squashed one is infinite, and a share of actions there decides.
    A fit that was begun in `folder` is gone on with.
    """
    config: BehaviorConfig = algorithm.behavior
    dims = rows.observations.shape[1], rows.actions.shape[1]
    key = jax.random.key(BEHAVIOR_SEED)

    def fit(config: BehaviorConfig, kind: str, state: FitState | None = None) -> Behavior:
        head = algorithm.behavior_head(kind)
        start = fitting.init(config, head, key, *dims)
        family = make_density(config, head).family
        path = folder / f"{family}.npz" if folder else None
        if state is None:
            state = load_tree(path, start)[0] if path and path.exists() else start

        def on_check(behavior: Behavior) -> None:
            if path:
                behavior.save(path)
            on_fit(family, behavior.state)

        behavior = fitting.fit(config, head, *rows, key, state=state, on_check=on_check)
        if path and not isinstance(behavior.density, Exact):
            behavior.save(path)  # with its estimate of log πβ, of which the looks knew nothing
        return behavior

    if algorithm.head != "auto":
        return fit(config, algorithm.head)
    trial = config.of("gaussian")
    # To its last look, so that only a fit that went on has more steps.
    looks = -(-min(HEAD_TRIAL_STEPS, config.max_steps) // config.check_every)
    trial = dataclasses.replace(trial, max_steps=looks * config.check_every)
    trials = [fit(trial, kind) for kind in ("plain", "squashed")]
    # Only the head that was chosen is fitted beyond its trial: a resumed fit keeps its choice.
    begun = [behavior for behavior in trials if behavior.steps > trial.max_steps]
    held = fitting.looked_at(rows.held_rows)
    best = max(
        begun or trials,
        key=lambda behavior: behavior.log_mass(
            rows.observations[held], rows.actions[held], HEAD_RADIUS
        ).mean(),
    )
    return fit(config, best.head.kind, best.state if config.model == "gaussian" else None)
