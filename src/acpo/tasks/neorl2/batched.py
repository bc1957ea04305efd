"""Environments written for N episodes at once; one episode alone is N = 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np


class Steps(NamedTuple):
    """What one step of N episodes gives: observations [N, s] and three arrays [N]."""

    observations: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray


class Batched(ABC):
    """N episodes of one task that begin together and advance together.

    Each episode draws from a generator of its own, made from its seed, and every operation is
    elementwise over episodes: episode e of a batch equals, to the last bit, the episode that is
    run alone from the same seed. A task that cannot promise this says so with `elementwise`.

    A task defines `_start` and `_advance`; the clock and the ends of episodes are kept here.
    """

    observation_dim: ClassVar[int]
    action_dim: ClassVar[int]
    horizon: ClassVar[int]
    action_low: ClassVar[float | np.ndarray] = -1.0
    action_high: ClassVar[float | np.ndarray] = 1.0
    # Any finite number, unless the task has bounds of its own.
    observation_low: ClassVar[float | np.ndarray] = float(np.finfo(np.float32).min)
    observation_high: ClassVar[float | np.ndarray] = float(np.finfo(np.float32).max)
    # False where an episode's rounding depends on how many share its batch.
    elementwise: ClassVar[bool] = True

    _generators: list[np.random.Generator]
    _clock: int
    _observations: np.ndarray
    _terminals: np.ndarray
    _timeouts: np.ndarray

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin one episode per seed; observations [N, s], float32."""
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._begin(len(seeds))
        self._observations = self._start().astype(np.float32)
        return self._observations.copy()

    def step(self, actions: np.ndarray) -> Steps:
        """Advance by actions [N, a], clipped to their bounds.

        An ended episode may be stepped on: it repeats its last observation and its flags, with
        reward 0.
        """
        running = ~(self._terminals | self._timeouts)
        rewards = np.zeros(len(running))
        if running.any():
            self._clock += 1
            clipped = np.clip(actions, self.action_low, self.action_high).astype(np.float32)
            observations, advanced, terminals = self._advance(clipped)
            latest = np.where(running[:, None], observations, self._observations)
            self._observations = latest.astype(np.float32)
            rewards[running] = advanced[running]
            self._terminals = np.where(running, terminals, self._terminals)
            self._timeouts = np.where(
                running, (self._clock >= self.horizon) & ~self._terminals, self._timeouts
            )
        return Steps(
            self._observations.copy(), rewards, self._terminals.copy(), self._timeouts.copy()
        )

    def _begin(self, episodes: int) -> None:
        """Set the clock back; no episode has ended."""
        self._clock = 0
        self._observations = np.zeros((episodes, self.observation_dim), dtype=np.float32)
        self._terminals = np.zeros(episodes, dtype=bool)
        self._timeouts = np.zeros(episodes, dtype=bool)

    @abstractmethod
    def _start(self) -> np.ndarray:
        """Draw the initial states from `self._generators`; the first observations [N, s]."""

    @abstractmethod
    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Next observations [N, s], rewards [N] and terminals [N], for float32 actions in bounds.

        Called for all episodes until the last has ended; what it answers for an ended one is
        dropped.
        """


class BatchedEnv(gymnasium.Env):
    """A plain Gymnasium environment: a batch of one episode.

    The task itself ends an episode at its horizon, so no TimeLimit is needed around it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 — Gymnasium declares it on the instance

    def __init__(self, batched: Batched) -> None:
        self.batched = batched
        self.observation_space = gymnasium.spaces.Box(
            np.float32(batched.observation_low),
            np.float32(batched.observation_high),
            (batched.observation_dim,),
            np.float32,
        )
        self.action_space = gymnasium.spaces.Box(
            np.float32(batched.action_low),
            np.float32(batched.action_high),
            (batched.action_dim,),
            np.float32,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the episode of this seed; without one, that of the next seed drawn."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        return self.batched.reset([seed])[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance the episode by one action."""
        steps = self.batched.step(np.asarray(action)[None])
        return (
            steps.observations[0],
            float(steps.rewards[0]),
            bool(steps.terminals[0]),
            bool(steps.timeouts[0]),
            {},
        )
