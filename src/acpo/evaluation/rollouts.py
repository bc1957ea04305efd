"""Roll policies out in their environment: all episodes of all policies advance together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acpo.actors import Deterministic, Mean, Network, to_arrays
from acpo.errors import UserError
from acpo.evaluation.environments import Environments
from acpo.policy import Policy
from acpo.tasks import dimensions, make_env, reference

if TYPE_CHECKING:
    import gymnasium

    from acpo.tasks.neorl2.batched import Batched

_TERMS = 2**18


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
    """Keeps the environments of one task open between evaluations."""

    def __init__(self, environment: str, episodes: int, workers: int | None = None) -> None:
        """`workers` as in `Environments`; tasks that advance all episodes at once have none."""
        self.environment, self.episodes = environment, episodes
        self._env = make_env(environment)
        self._box = ActionBox(environment, self._env.action_space)
        self.batched: Batched | None = getattr(self._env.unwrapped, "batched", None)
        self._environments = Environments(environment, self._env, workers)

    def check(self, what: str, observation_dim: int, action_dim: int) -> None:
        """Refuse a dataset or a policy (`what`) whose sizes are not the environment's."""
        sizes = dimensions(self._env)
        if sizes != (observation_dim, action_dim):
            raise UserError(
                f"{what} has {observation_dim} observations and {action_dim} actions per step, but "
                f"{self.environment} has {sizes[0]} and {sizes[1]}. Name the right environment "
                "with --env (to train without one: --env none)."
            )

    def __call__(
        self, policies: Sequence[Callable[[np.ndarray], np.ndarray]], seed: int
    ) -> Rollouts:
        """Returns [policies, episodes]; episode e of every policy starts from seed + e.

        All episodes of all policies advance together, and each is the same as without the others.
        Where an episode's rounding depends on the size of its batch (Fusion), the policies take
        turns instead.
        """
        if len(policies) > 1 and self.batched is not None and not self.batched.elementwise:
            alone = [self([policy], seed) for policy in policies]
            return Rollouts(*map(np.concatenate, zip(*alone, strict=True)))
        together = self.batched or self._environments
        act = self._acting(policies)
        shape = (len(policies), self.episodes)
        returns, lengths = np.zeros(shape), np.zeros(shape, np.int64)
        running = np.ones(shape, dtype=bool)
        seeds = [seed + e for e in range(self.episodes)] * len(policies)
        observations = together.reset(seeds).reshape(*shape, -1)
        while running.any():
            # Ended episodes stay in the batch: a product over fewer rows may round otherwise, and
            # one episode's return must not depend on when another ended.
            actions = act(observations, running)
            steps = together.step(actions.reshape(len(seeds), -1))
            observations = steps.observations.reshape(*shape, -1)
            returns += steps.rewards.reshape(shape)  # 0 for an episode that has ended
            lengths += running
            running &= ~(steps.terminals | steps.timeouts).reshape(shape)
        return Rollouts(returns, lengths)

    def close(self) -> None:
        """End the worker processes, if there are any."""
        self._environments.close()

    def _acting(
        self, policies: Sequence[Callable[[np.ndarray], np.ndarray]]
    ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Actions [K, E, a] for observations [K, E, s]: of policies that are alike in one call."""
        if (joint := stacked(policies)) is not None:
            return lambda observations, _: self._box.actions(joint, observations)
        actions: list[Any] = [None] * len(policies)

        def one_by_one(observations: np.ndarray, running: np.ndarray) -> np.ndarray:
            for k in np.flatnonzero(running.any(axis=1)).tolist():
                actions[k] = self._box.actions(policies[k], observations[k])
            return np.stack(actions)

        return one_by_one


def stacked(policies: Sequence[Any]) -> Policy | None:
    """One policy for observations [K, E, s], of K that differ in their numbers alone; else None.

    Policy k's actions are, to the last bit, those that it gives as the only one of K = 1.
    """
    if not all(type(policy) is Policy for policy in policies):
        return None
    first: Policy = policies[0]
    actor = first.actor
    if not isinstance(actor, Mean | Deterministic):
        return None

    def kind(policy: Policy) -> Any:
        shapes = {name: array.shape for name, array in to_arrays(policy.actor).items()}
        return type(policy.actor), shapes, policy.features

    if any(kind(policy) != kind(first) for policy in policies):
        return None

    def rows(arrays: Iterable[np.ndarray]) -> np.ndarray:
        """[K, 1, n], to go with [K, E, n]."""
        return np.stack(list(arrays))[:, None]

    networks = [policy.actor.network for policy in policies]
    layers = range(len(actor.network.weights))
    network = Network(
        weights=tuple(_OneThread(np.stack([n.weights[i] for n in networks])) for i in layers),
        biases=tuple(rows(n.biases[i] for n in networks) for i in layers),
    )
    return dataclasses.replace(
        first,
        actor=actor._replace(network=network),
        observation_mean=rows(p.observation_mean for p in policies),
        observation_std=rows(p.observation_std for p in policies),
    )


class _OneThread:
    """Weights [K, m, n], by which x [K, E, m] is multiplied a few columns at a time.

    OpenBLAS shares a product of more than 2^18 terms among threads, which gains nothing at this
    size: where other programs keep the CPUs busy, the threads wait for each other, and a step's
    products were seen to take fifty times as long.
    """

    __array_ufunc__ = None  # numpy leaves `x @ self` to `__rmatmul__`

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights

    def __rmatmul__(self, x: np.ndarray) -> np.ndarray:
        columns = max(1, _TERMS // (x.shape[-2] * x.shape[-1]))
        out = np.empty((*x.shape[:-1], self._weights.shape[-1]), dtype=x.dtype)
        for i in range(0, out.shape[-1], columns):
            part = np.s_[..., i : i + columns]
            np.matmul(x, self._weights[part], out=out[part])
        return out


def normalized_score(environment: str | None, returns: np.ndarray) -> np.ndarray | None:
    """100 · (R − min)/(max − min) where the environment has reference returns."""
    known = reference(environment)
    return None if known is None else np.asarray(known.score(returns))
