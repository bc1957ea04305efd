"""Roll policies out in their environment: all episodes advance together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from acpo.errors import UserError
from acpo.tasks import REFERENCES, dimensions, make_env


class Rollouts(NamedTuple):
    """Raw results of an evaluation, one entry per episode on the last axis."""

    returns: np.ndarray
    lengths: np.ndarray


class Evaluator:
    """Keeps the environments of one task open between evaluations."""

    def __init__(self, environment: str, episodes: int, policies: int = 1) -> None:
        self.environment = environment
        self.episodes = episodes
        self._envs = [[make_env(environment) for _ in range(episodes)] for _ in range(policies)]
        space: Any = self._envs[0][0].action_space
        self._low, self._high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not np.all(np.isfinite(self._low) & np.isfinite(self._high)):
            raise UserError(f"{environment}'s action space {space} is unbounded.")

    def check(self, observation_dim: int, action_dim: int) -> None:
        """Refuse a dataset whose sizes are not the environment's."""
        sizes = dimensions(self._envs[0][0])
        if sizes != (observation_dim, action_dim):
            raise UserError(
                f"The data has {observation_dim} observation and {action_dim} action columns, but "
                f"{self.environment} has {sizes[0]} and {sizes[1]}. Name the right environment "
                "with --env, or train without one: --env none."
            )

    def __call__(
        self, policies: Sequence[Callable[[np.ndarray], np.ndarray]], seed: int
    ) -> Rollouts:
        """Returns [policies, episodes]; episode e of every policy starts from seed + e."""
        shape = (len(policies), self.episodes)
        returns, lengths = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        running = np.ones(shape, dtype=bool)
        observations = np.stack(
            [[env.reset(seed=seed + e)[0] for e, env in enumerate(row)] for row in self._envs]
        ).astype(np.float32)
        while running.any():
            for k, policy in enumerate(policies):
                live = np.flatnonzero(running[k])
                if not len(live):
                    continue
                # Data and policies speak [−1, 1]; the environment has its own box.
                unit = policy(observations[k, live])
                actions = self._low + (unit + 1.0) * 0.5 * (self._high - self._low)
                for action, e in zip(actions, live, strict=True):
                    observation, reward, terminal, timeout, _ = self._envs[k][e].step(action)
                    observations[k, e] = observation
                    returns[k, e] += float(reward)
                    lengths[k, e] += 1
                    running[k, e] = not (terminal or timeout)
        return Rollouts(returns, lengths)


def normalized_score(environment: str | None, returns: np.ndarray) -> np.ndarray | None:
    """100 · (R − min)/(max − min) where the environment has reference returns."""
    reference = REFERENCES.get(environment or "")
    if reference is None:
        return None
    return np.asarray(reference.score(returns))
