"""SafetyHalfCheetah and RandomFrictionHopper against the official data and the authors' source."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from acpo.tasks.neorl2 import random_friction_hopper, safety_halfcheetah
from acpo.tasks.neorl2.random_friction_hopper import RandomFrictionHopperEnv
from acpo.tasks.neorl2.safety_halfcheetah import SafetyHalfCheetahEnv

BOTH = pytest.mark.parametrize("kind", [SafetyHalfCheetahEnv, RandomFrictionHopperEnv])


@pytest.fixture(scope="module", params=["train", "val"])
def cheetah_rows(request: pytest.FixtureRequest, shared_data: Path) -> dict[str, np.ndarray]:
    with np.load(shared_data / "neorl2" / f"SafetyHalfCheetah-{request.param}.npz") as archive:
        return dict(archive)


def _waves(step: int) -> np.ndarray:
    return (0.5 * np.sin(0.2 * step + np.arange(3))).astype(np.float32)


def _episode(env: Any, seed: int, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    observations = [env.reset(seed=seed)[0]]
    rewards = []
    for action in actions:
        observation, reward, *_ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    return np.array(observations), np.array(rewards)


@BOTH
def test_gymnasium_finds_nothing_wrong(kind: type[gymnasium.Env]) -> None:
    env = gymnasium.make(EnvSpec("acpo/Checked-v0", entry_point=kind)).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@BOTH
def test_a_seed_alone_decides_an_episode(kind: type[gymnasium.Env]) -> None:
    env = kind()
    size = env.action_space.shape[0]
    actions = np.random.default_rng(0).uniform(-1, 1, (12, size)).astype(np.float32)
    first = _episode(env, 5, actions)
    random.seed(99)
    np.random.seed(99)
    before = random.getstate()
    again = _episode(kind(), 5, actions)
    assert random.getstate() == before
    assert np.random.random() == np.random.RandomState(99).random()
    np.testing.assert_array_equal(again[0], first[0])
    np.testing.assert_array_equal(again[1], first[1])
    assert not np.array_equal(_episode(env, 6, actions)[0], first[0])


def test_cheetah_runs_its_thousand_steps() -> None:
    env = SafetyHalfCheetahEnv()
    env.reset(seed=0)
    ends = [env.step(np.zeros(6, np.float32))[2:4] for _ in range(1000)]
    assert ends == [(False, False)] * 999 + [(False, True)]


def test_cheetah_reward_by_hand() -> None:
    here, there = np.zeros((3, 18)), np.zeros((3, 18))
    there[:, 0] = 0.1, 0.16047, 0.16049  # 2, 3.2094 and 3.2098 metres per second
    action = np.full((3, 6), 0.5)  # costs 0.1 · 6 · 0.25 = 0.15
    rewards = safety_halfcheetah.reward(here, action, there)
    np.testing.assert_allclose(rewards, [1.85, 3.0594, -100.0])


def test_cheetah_too_fast_is_punished_and_goes_on() -> None:
    env = SafetyHalfCheetahEnv()
    env.reset(seed=0)
    state = env.simulator.state_vector()
    state[9] = 6.0
    env.simulator.set_state(state[:9], state[9:])
    _, reward, terminal, timeout, info = env.step(np.zeros(6, np.float32))
    assert info["x_velocity"] > safety_halfcheetah.VELOCITY_LIMIT
    assert (reward, terminal, timeout) == (-100.0, False, False)


def test_cheetah_reward_and_ends_of_every_recorded_row(cheetah_rows: dict[str, Any]) -> None:
    here, there = cheetah_rows["obs"], cheetah_rows["next_obs"]
    rewards = safety_halfcheetah.reward(
        here.astype(np.float64), cheetah_rows["action"], there.astype(np.float64)
    )
    # x is stored in float32: half a spacing of either x, over dt, and the rounding of r itself.
    spacings = np.spacing(np.abs(here[:, 0])) + np.spacing(np.abs(there[:, 0]))
    bound = 0.5 * spacings / safety_halfcheetah.DT + 1e-6
    assert np.all(np.abs(rewards - cheetah_rows["reward"]) <= bound)
    assert not cheetah_rows["done"].any()
    np.testing.assert_array_equal(
        np.flatnonzero(cheetah_rows["truncated"]), np.arange(999, len(here), 1000)
    )


def test_cheetah_repeats_recorded_steps_from_recorded_states(cheetah_rows: dict[str, Any]) -> None:
    env = SafetyHalfCheetahEnv()
    env.reset(seed=0)
    errors, reward_errors = [], []
    for row in range(0, len(cheetah_rows["obs"]), 10):
        state = cheetah_rows["obs"][row].astype(np.float64)
        env.simulator.set_state(state[:9], state[9:])
        observation, reward, *_ = env.step(cheetah_rows["action"][row])
        errors.append(np.abs(observation - cheetah_rows["next_obs"][row]).max())
        reward_errors.append(abs(reward - float(cheetah_rows["reward"][row])))
    # All from float32: a state off by 1e-7 leaves a stiff contact off by up to 1.3e-3 (rad/s).
    # MuJoCo 3.1.6, which replays the data whole, is as far off from the stored states.
    assert np.median(errors) < 3e-6
    assert max(errors) < 3e-3
    assert np.median(reward_errors) < 3e-7
    assert max(reward_errors) < 5e-5


def test_cheetah_replays_recorded_episodes_from_their_seeds(cheetah_rows: dict[str, Any]) -> None:
    env = SafetyHalfCheetahEnv()
    # The authors kept those of their first hundred seeds that never went too fast.
    starts = np.array([env.reset(seed=seed)[0] for seed in range(100)])
    used = []
    for row in range(0, len(cheetah_rows["obs"]), 1000):
        seed = int(np.abs(starts - cheetah_rows["obs"][row]).max(axis=1).argmin())
        used.append(seed)
        observations, rewards = _episode(env, seed, cheetah_rows["action"][row : row + 30])
        # From about step 50 on, the last bits of another MuJoCo have grown by chaos; 3.1.6 itself
        # repeats all thousand.
        recorded = cheetah_rows["next_obs"][row : row + 30]
        np.testing.assert_allclose(observations[0], cheetah_rows["obs"][row], atol=2e-8)
        np.testing.assert_allclose(observations[1:], recorded, atol=2e-6)
        np.testing.assert_allclose(rewards, cheetah_rows["reward"][row : row + 30], atol=1e-6)
    assert used == sorted(set(used))


@pytest.mark.parametrize(
    ("seed", "friction", "total", "x"),
    [
        (0, 2.3444218515250483, -5.486469274711505, -0.042446433565032624),
        (1, 1.634364244112401, -5.602761791556805, -0.04462817432600699),
        (2, 2.4560342718892496, -5.573232249571209, -0.046894032894631635),
    ],
)
def test_hopper_equals_the_authors_source(
    seed: int, friction: float, total: float, x: float
) -> None:
    # Their source with MuJoCo 3.1.6, Python's generator seeded alike: falls after 25 steps. A
    # MuJoCo that adds the margins of floor and foot would be off by 1e-2 in the return.
    env = RandomFrictionHopperEnv()
    env.reset(seed=seed)
    steps = [env.step(_waves(k)) for k in range(25)]
    assert [step[2] for step in steps] == [False] * 24 + [True]
    assert sum(step[1] for step in steps) == pytest.approx(total, abs=1e-9)
    assert steps[-1][0][0] == pytest.approx(x, abs=1e-10)
    assert {step[0][12] for step in steps} == {friction}


def test_hopper_simulates_the_rounded_friction() -> None:
    env = RandomFrictionHopperEnv()
    drawn = [env.reset(seed=seed)[0][12] for seed in range(50)]
    assert 1.5 <= min(drawn) < 1.6
    assert 2.4 < max(drawn) <= 2.5
    env.reset(seed=0)
    assert env.simulator.model.geom("foot_geom").friction[0] == 2.34
    assert env.reset()[0][12] != env.reset()[0][12]


def test_hopper_ends_by_hand() -> None:
    upright = np.array([0.0, 1.25, *[0.0] * 10, 2.0])
    low, tilted, wild, fast = (upright.copy() for _ in range(4))
    low[1], tilted[2], wild[4], fast[8] = 0.7, -0.2, 100.0, 10.0
    rows = np.array([upright, low, tilted, wild, fast])
    ends = random_friction_hopper.terminal(rows)
    np.testing.assert_array_equal(ends, [False, True, True, True, False])
    rewards = random_friction_hopper.reward(upright, np.full(3, 2.0), upright + 0.004)
    assert rewards == pytest.approx(0.5 - 0.012)
