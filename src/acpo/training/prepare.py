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

from acpo.algorithms.base import Batch
from acpo.behavior import gaussian
from acpo.behavior.gaussian import FitState, GaussianBehavior
from acpo.data import Dataset
from acpo.data.combine import take
from acpo.data.inspect import Moments
from acpo.data.pairing import Transitions
from acpo.errors import UserError
from acpo.networks import Head
from acpo.storage import load_tree, save_tree

# πβ describes the data, not a run: it is fitted with this seed whatever the run's seeds are, so
# that seed k alone and seed k among others see the same density.
BEHAVIOR_SEED = 0
RETURN_RANGE = 300.0
HEAD_TRIAL_STEPS = 1_000
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
        # A constant column carries nothing; leave its scale alone instead of dividing by zero.
        std = np.where(moments.std > 1e-6, moments.std, 1.0)
        return cls(moments.mean.astype(np.float32), std.astype(np.float32))

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return (observations - self.mean) / self.std


class Layout(NamedTuple):
    """Where each field stands in a packed row."""

    observation_dim: int
    action_dim: int
    behavior_dim: int

    @property
    def width(self) -> int:
        """Columns of a packed row: s, s', a, r, terminal, and πβ's parameters with log πβ."""
        density = self.behavior_dim + 1 if self.behavior_dim else 0
        return 2 * self.observation_dim + self.action_dim + 2 + density

    def unpack(self, rows: Array) -> Batch:
        s, a, b = self
        ends = np.cumsum([s, s, a, 1, 1, b])
        columns = jnp.split(rows, ends, axis=-1)
        observations, following, actions, rewards, terminals, behavior, log_beta = columns
        return Batch(
            observations,
            actions,
            rewards[..., 0],
            following,
            terminals[..., 0],
            *((behavior, log_beta[..., 0]) if b else ()),
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
    on_fit: Callable[[str, FitState], None] = lambda head, state: None,
    memory_gb: float = 1.0,
) -> Prepared:
    """Normalise, fit πβ (or take it from `directory`), settle the open fields, pack the rows."""
    facts: dict[str, Any] = {}
    normalizer = Normalizer.fit(data, algorithm.normalize_observations)

    scale = 1.0
    if hasattr(algorithm, "reward_scale"):
        if algorithm.reward_scale is None:
            algorithm = dataclasses.replace(algorithm, reward_scale=_reward_scale(data))
        scale = algorithm.reward_scale
        facts["reward_scale"] = scale

    needs_density = hasattr(algorithm, "rule")
    behavior_dim = 2 * data.action_dim if needs_density else 0
    if needs_density or algorithm.head == "auto":
        behavior = _fit(data, normalizer, algorithm, directory, on_fit)
        algorithm = dataclasses.replace(algorithm, head=behavior.head.kind)
        facts |= {
            "head": behavior.head.kind,
            "behavior_steps": behavior.steps,
            "behavior_held_out_log_prob": behavior.held_out_log_prob,
        }
    if needs_density:
        rule = algorithm.rule
        if rule.epsilon is None:
            epsilon = behavior.held_out_log_prob - rule.epsilon_margin
            rule = dataclasses.replace(rule, epsilon=epsilon)
            algorithm = dataclasses.replace(algorithm, rule=rule)
        facts["epsilon"] = rule.epsilon

    def packed(block: Transitions) -> np.ndarray:
        observations = normalizer(block.observations)
        columns = [
            observations,
            normalizer(block.next_observations),
            block.actions,
            (block.rewards * np.float32(scale))[:, None],
            block.terminals[:, None],
        ]
        if needs_density:
            columns.append(behavior.annotate(observations, block.actions))
        return np.concatenate(columns, axis=1, dtype=np.float32)

    layout = Layout(data.observation_dim, data.action_dim, behavior_dim)
    if 4 * layout.width * len(data) <= memory_gb * 2**30:
        (rows,) = map(packed, data.blocks(len(data)))
    else:
        rows = _on_disk(map(packed, data.blocks()), layout.width, directory)
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


def _reward_scale(data: Dataset) -> float:
    spread = float(np.ptp(data.episode_returns))
    if spread <= 0:
        spread = float(np.abs(data.episode_returns).max())
    return RETURN_RANGE / spread if spread > 0 else 1.0


def _fit(
    data: Dataset,
    normalizer: Normalizer,
    algorithm: Any,
    directory: Path | None,
    on_fit: Callable[[str, FitState], None],
) -> GaussianBehavior:
    """Fit πβ with the head asked for; with "auto" try both and go on with the likelier one.

    Where the data comes with validation episodes, these tell when to stop; otherwise a share of
    its own episodes does. Of very much data a part is enough: whole episodes, drawn at random.
    """
    config = algorithm.behavior
    if len(data) > MAX_FIT_ROWS:
        data = take(data, MAX_FIT_ROWS / len(data), BEHAVIOR_SEED)
    observations, actions = normalizer(data.observations), data.actions
    if data.validation is None:
        train_rows, held_rows = data.split(config.held_out, BEHAVIOR_SEED)
    else:
        held = data.validation
        train_rows = np.arange(len(data))
        held_rows = np.arange(len(data), len(data) + len(held))
        observations = np.concatenate([observations, normalizer(held.observations)])
        actions = np.concatenate([actions, held.actions])
    key = jax.random.key(BEHAVIOR_SEED)
    start = gaussian.init(config, key, data.observation_dim, data.action_dim)

    def fit(kind: str, max_steps: int, state: FitState | None = None) -> GaussianBehavior:
        path = directory / "behavior" / f"{kind}.npz" if directory else None
        if state is None:
            state = load_tree(path, start)[0] if path and path.exists() else start

        def on_check(state: FitState) -> None:
            if path:
                save_tree(path, state, {"head": kind})
            on_fit(kind, state)

        return gaussian.fit(
            dataclasses.replace(config, max_steps=max_steps),
            Head.settled(kind, algorithm.log_std_min, algorithm.log_std_max),
            observations,
            actions,
            train_rows,
            held_rows,
            key,
            state=state,
            on_check=on_check,
        )

    if algorithm.head != "auto":
        return fit(algorithm.head, config.max_steps)
    trial_steps = min(HEAD_TRIAL_STEPS, config.max_steps)
    trials = [fit(kind, trial_steps) for kind in ("plain", "squashed")]
    # A resumed winner may come back from beyond its trial; its best look only ever improves.
    best = max(trials, key=lambda trial: trial.held_out_log_prob)
    return fit(best.head.kind, config.max_steps, best.state)
