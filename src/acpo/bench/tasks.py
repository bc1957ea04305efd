"""Steps per second of the tasks' environments: alone, in an evaluation, and in the original.

What is compared runs one after another, so that a busy machine slows all alike. Only steps are
timed, no resets, and the same uniform actions drive all. An environment alone and the original are
given theirs for nothing; an evaluation also pays for its policy, a network of 256 × 256.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from acpo.actors import Mean, Network
from acpo.bench import speed
from acpo.errors import UserError
from acpo.evaluation.environments import available_cpus
from acpo.evaluation.rollouts import ActionBox, Evaluator, stacked
from acpo.policy import Policy
from acpo.tasks import AUTHORS, find_task, make_env, suggestion

NAMES = (
    *("Hopper-v4", "HalfCheetah-v4", "Walker2d-v4"),
    *(f"d4rl/antmaze-{maze}-v2" for maze in ("umaze", "medium-play", "large-play")),
    "d4rl/kitchen-mixed-v0",
    *(f"neorl2/{name}" for name in ("DMSD", "Pipeline", "RocketRecovery", "Simglucose")),
    *(f"neorl2/{name}" for name in ("SafetyHalfCheetah", "RandomFrictionHopper", "Fusion")),
)
EPISODES = 10
BETWEEN = 5_000  # updates between two evaluations
# Uniform actions in [−1, 1], but for this task, whose patients would not live long with them.
_RANGES = {"neorl2/Simglucose": (-1.0, -0.98)}
_DRAWS = 1_000


class Rates(NamedTuple):
    """Steps per second of one task."""

    alone: float
    evaluation: float
    original: float | None
    original_missing: str | None
    """Why the original was not measured."""
    horizon: int

    @property
    def ratio(self) -> float:
        """An evaluation to the original or, without one, to the environment alone."""
        return self.evaluation / (self.original or self.alone)

    @property
    def seconds(self) -> float:
        """An evaluation of ten episodes, none of which ends before its last step."""
        return EPISODES * self.horizon / self.evaluation


def measure(name: str, seconds: float) -> Rates:
    """The rates of one task, `seconds` for each.

    Raises:
        UserError: if no task has that name, or its environment cannot be made here.
    """
    task = find_task(name)
    if task is None:
        raise UserError(f"No task is called {name!r}. {suggestion(name)}")
    low, high = _RANGES.get(task.environment, (-1.0, 1.0))
    generator = np.random.default_rng(0)
    draws = generator.uniform(low, high, (_DRAWS, EPISODES, task.sizes.actions))
    units = draws.astype(np.float32)
    env = make_env(task.environment)
    actions = ActionBox(task.environment, env.action_space)(units[:, 0])
    alone = _stepping(env, env.step, actions, task.sizes.horizon, seconds)
    evaluation = _evaluating(task.environment, task.sizes.observations, units, seconds)
    original, missing = None, None
    if task.name.startswith("neorl2/"):
        try:
            theirs: Any = make_env(task.name.replace("neorl2/", AUTHORS))
        except UserError as error:
            missing = str(error)
        else:
            # Their own step. Ours around it makes episodes repeatable, and takes longer than some.
            original = _stepping(
                theirs,
                lambda action: theirs._env.step(theirs._acceptable(action)),
                actions,
                task.sizes.horizon,
                seconds,
            )
    return Rates(alone, evaluation, original, missing, task.sizes.horizon)


def updates_per_second(seconds: float) -> float:
    """Of training on all CPUs, up to two; see `acpo bench speed`."""
    rate = speed._measure("ours", min(available_cpus(), 2), seconds)
    if rate is None:
        raise UserError("The rate of updates could not be measured; see acpo bench speed.")
    return rate


def _stepping(
    env: Any, step: Callable[[Any], Any], actions: np.ndarray, horizon: int, seconds: float
) -> float:
    """Steps per second of `step`; `env` begins the episodes. The first one may have to compile."""
    env.reset(seed=0)
    step(actions[0])
    spent, steps, episode = 0.0, 0, 0
    while spent < seconds:
        env.reset(seed=episode)
        episode += 1
        for _ in range(horizon):
            action = actions[steps % len(actions)]
            start = time.perf_counter()
            _, _, terminal, timeout, *_ = step(action)
            spent += time.perf_counter() - start
            steps += 1
            if terminal or timeout or spent >= seconds:
                break
    return steps / spent


def _evaluating(environment: str, inputs: int, units: np.ndarray, seconds: float) -> float:
    """Steps per second of evaluations, from the policy's first call to the last episode's end."""
    evaluator = Evaluator(environment, EPISODES)
    network = stacked([_network(inputs, units.shape[-1])])
    assert network is not None
    begun: float | None = None
    calls = 0

    def policy(observations: np.ndarray) -> np.ndarray:
        nonlocal begun, calls
        begun = begun or time.perf_counter()
        calls += 1
        network(observations[None])
        return units[calls % len(units)]

    if evaluator.batched is not None:  # its first step may have to compile
        evaluator.batched.reset(range(EPISODES))
        evaluator.batched.step(units[0])
    spent, steps, seed = 0.0, 0, 0
    while spent < seconds:
        begun = None
        steps += int(evaluator([policy], seed).lengths.sum())
        assert begun is not None
        spent += time.perf_counter() - begun
        seed += EPISODES
    evaluator.close()
    return steps / spent


def _network(inputs: int, outputs: int) -> Policy:
    sizes = (inputs, 256, 256, 2 * outputs)
    network = Network(
        tuple(np.zeros(pair, np.float32) for pair in pairwise(sizes)),
        tuple(np.zeros(size, np.float32) for size in sizes[1:]),
    )
    return Policy(Mean(network), np.zeros(inputs, np.float32), np.ones(inputs, np.float32), info={})
