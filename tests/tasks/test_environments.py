"""Every task of the paper by its name."""

from __future__ import annotations

import importlib.util
from itertools import starmap

import numpy as np
import pytest

import acpo
from acpo.data import catalogue
from acpo.errors import UserError
from acpo.evaluation.rollouts import Evaluator
from acpo.tasks import dimensions, reference

# Observations, actions and steps of an episode, as the benchmarks publish them.
SIZES = {
    "neorl2/DMSD": (6, 2, 100),
    "neorl2/Pipeline": (52, 1, 1000),
    "neorl2/RandomFrictionHopper": (13, 3, 1000),
    "neorl2/RocketRecovery": (7, 2, 500),
    "neorl2/SafetyHalfCheetah": (18, 6, 1000),
    "neorl2/Simglucose": (31, 1, 480),
    "d4rl/antmaze-umaze-v2": (29, 8, 700),
    "d4rl/antmaze-large-diverse-v2": (29, 8, 1000),
    "d4rl/kitchen-mixed-v0": (60, 9, 280),
}
BATCHED = ("neorl2/DMSD", "neorl2/Pipeline", "neorl2/RocketRecovery", "neorl2/Simglucose")


@pytest.mark.parametrize("name", SIZES)
def test_a_task_has_its_published_sizes_and_repeats_an_episode(name: str) -> None:
    if "kitchen" in name and importlib.util.find_spec("gymnasium_robotics") is None:
        pytest.skip("needs gymnasium-robotics")
    env = acpo.make_env(name)
    assert dimensions(env) == SIZES[name][:2]
    actions = np.random.default_rng(0).uniform(-1, 1, (5, SIZES[name][1])).astype(np.float32)

    def episode() -> list[np.ndarray]:
        first, _ = env.reset(seed=11)
        return [first, *(env.step(action)[0] for action in actions)]

    for one, other in zip(episode(), episode(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_named_dataset_names_an_environment_with_a_reference() -> None:
    for entry in catalogue.ENTRIES.values():
        assert reference(entry.environment) is not None


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_episodes_returns_what_single_ones_do(name: str) -> None:
    def policy(observations: np.ndarray) -> np.ndarray:
        return np.tanh(observations[:, : SIZES[name][1]])

    def alone(seed: int) -> tuple[float, int]:
        env = acpo.make_env(name)
        observation, _ = env.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
        while not over:
            unit = policy(observation[None])[0]
            action = ((high + low) / 2 + (high - low) / 2 * unit).astype(np.float32)
            observation, reward, terminal, timeout, _ = env.step(action)
            total, steps, over = total + reward, steps + 1, terminal or timeout
        return total, steps

    found = Evaluator(name, episodes=2)([policy], seed=5)
    returns, lengths = zip(*starmap(alone, [(5,), (6,)]), strict=True)
    np.testing.assert_allclose(found.returns[0], returns, rtol=1e-4)
    np.testing.assert_array_equal(found.lengths[0], lengths)


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be made"):
        acpo.make_env("neorl2/Nothing")
    with pytest.raises(UserError, match="umaze"):
        acpo.make_env("d4rl/antmaze-tiny-v2")
