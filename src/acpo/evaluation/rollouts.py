"""Roll policies out in their environment: all episodes advance together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acpo.errors import UserError
from acpo.tasks import dimensions, make_env, reference

if TYPE_CHECKING:
    import gymnasium

    from acpo.tasks.neorl2.batched import Batched


class Rollouts(NamedTuple):
    """Raw results of an evaluation, one entry per episode on the last axis."""

    returns: np.ndarray
    lengths: np.ndarray


class ActionBox:
    """Data and policies speak [−1, 1]; the environment has a box of its own."""

    def __init__(self, environment: str, space: gymnasium.Space) -> None:
        box: Any = space
        if not np.all(np.isfinite(box.low) & np.isfinite(box.high)):
            raise UserError(f"{environment}'s action space {box} is unbounded.")
        # Middle and half-width, and the box's own type: where the box is [−1, 1], as in MuJoCo's
        # tasks, the action arrives unchanged to the last bit.
        self._middle = (box.high.astype(np.float64) + box.low) / 2.0
        self._half = (box.high.astype(np.float64) - box.low) / 2.0
        self._dtype = box.dtype
        self._bounds = (box.low, box.high)

    def actions(
        self, policy: Callable[[np.ndarray], np.ndarray], observations: np.ndarray
    ) -> np.ndarray:
        """The environment's actions. A policy that was taught units answers in these already."""
        features = getattr(policy, "features", None)
        if features is not None and features.action_low:
            return np.clip(policy(observations), *self._bounds).astype(self._dtype)
        return self(policy(observations))

    def __call__(self, unit: np.ndarray) -> np.ndarray:
        """The environment's action for one in [−1, 1]."""
        return (self._middle + self._half * unit).astype(self._dtype)


class Evaluator:
    """Keeps the environments of one task open between evaluations, one per episode."""

    def __init__(self, environment: str, episodes: int) -> None:
        self.environment = environment
        self._envs = [make_env(environment) for _ in range(episodes)]
        self._box = ActionBox(environment, self._envs[0].action_space)
        self._batch: Batched | None = getattr(self._envs[0].unwrapped, "batched", None)

    def check(self, what: str, observation_dim: int, action_dim: int) -> None:
        """Refuse a dataset or a policy (`what`) whose sizes are not the environment's."""
        sizes = dimensions(self._envs[0])
        if sizes != (observation_dim, action_dim):
            raise UserError(
                f"{what} has {observation_dim} observations and {action_dim} actions per step, but "
                f"{self.environment} has {sizes[0]} and {sizes[1]}. Name the right environment "
                "with --env (to train without one: --env none)."
            )

    def __call__(
        self, policies: Sequence[Callable[[np.ndarray], np.ndarray]], seed: int
    ) -> Rollouts:
        """Returns [policies, episodes]; episode e of every policy starts from seed + e."""
        results = [self._episodes(policy, seed) for policy in policies]
        return Rollouts(*(np.stack(arrays) for arrays in zip(*results, strict=True)))

    def _episodes(
        self, policy: Callable[[np.ndarray], np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """All episodes advance together: one call of the policy per step, on a batch."""
        if self._batch is not None:
            return self._batched_episodes(self._batch, policy, seed)
        returns = np.zeros(len(self._envs))
        lengths = np.zeros(len(self._envs), dtype=np.int64)
        running = np.ones(len(self._envs), dtype=bool)
        observations = np.stack([env.reset(seed=seed + e)[0] for e, env in enumerate(self._envs)])
        while running.any():
            # Ended episodes stay in the batch: a product over fewer rows may round otherwise, and
            # one episode's return must not depend on when another ended.
            actions = self._box.actions(policy, observations)
            for e in np.flatnonzero(running):
                observation, reward, terminal, timeout, _ = self._envs[e].step(actions[e])
                observations[e] = observation
                returns[e] += float(reward)
                lengths[e] += 1
                running[e] = not (terminal or timeout)
        return returns, lengths

    def _batched_episodes(
        self, batch: Batched, policy: Callable[[np.ndarray], np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same where the environment itself advances all episodes at once."""
        observations = batch.reset([seed + e for e in range(len(self._envs))])
        returns, lengths = np.zeros(len(observations)), np.zeros(len(observations), np.int64)
        running = np.ones(len(observations), dtype=bool)
        while running.any():
            actions = self._box.actions(policy, observations)
            observations, rewards, terminals, timeouts = batch.step(actions)
            returns += rewards  # 0 for an episode that has ended
            lengths += running
            running &= ~(terminals | timeouts)
        return returns, lengths


def normalized_score(environment: str | None, returns: np.ndarray) -> np.ndarray | None:
    """100 · (R − min)/(max − min) where the environment has reference returns."""
    known = reference(environment)
    return None if known is None else np.asarray(known.score(returns))
