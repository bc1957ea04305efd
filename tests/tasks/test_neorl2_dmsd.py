"""DMSD moves as NeoRL2's recordings do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from acpo.tasks.neorl2.dmsd import DMSD, DMSDEnv


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> dict[str, np.ndarray]:
    return dict(np.load(shared_data / "neorl2" / "DMSD-train.npz"))


def changed(recorded: dict[str, np.ndarray]) -> np.ndarray:
    """Rows [n, 2] in which a mass is given another target."""
    return recorded["obs"][:, 4:] != recorded["next_obs"][:, 4:]


def test_recorded_steps_are_met(recorded: dict[str, np.ndarray]) -> None:
    task = DMSD()
    task.restore(recorded["obs"])
    found = task.step(recorded["action"])
    np.testing.assert_allclose(found.observations[:, :4], recorded["next_obs"][:, :4], atol=3e-7)
    kept = ~changed(recorded).any(axis=1)
    # A logarithm magnifies the last bit of an error near zero.
    np.testing.assert_allclose(found.rewards[kept], recorded["reward"][kept], atol=3e-5)


def test_recorded_episodes_end_at_the_horizon_only(recorded: dict[str, np.ndarray]) -> None:
    last = np.arange(len(recorded["obs"])) % DMSD.horizon == DMSD.horizon - 1
    np.testing.assert_array_equal(recorded["truncated"] > 0, last)
    assert not recorded["done"].any()
    task = DMSD()
    task.reset(range(3))
    flags = [task.step(np.zeros((3, 2)))[2:] for _ in range(DMSD.horizon)]
    assert not np.any([terminals for terminals, _ in flags])
    assert [timeouts.all() for _, timeouts in flags] == [False] * 99 + [True]


def test_targets_change_half_way_as_often_as_recorded(recorded: dict[str, np.ndarray]) -> None:
    """Half of all targets change, all in the step that arrives at time 50."""
    recorded_changes = changed(recorded).reshape(-1, DMSD.horizon, 2)
    task = DMSD()
    seen = [task.reset(range(1000))]
    seen += [task.step(np.zeros((1000, 2))).observations for _ in range(DMSD.horizon)]
    ours = np.diff(np.stack(seen, axis=1)[..., 4:], axis=1) != 0
    for changes in (recorded_changes, ours):
        assert not np.delete(changes, 49, axis=1).any()
        assert np.abs(changes[:, 49].mean(axis=0) - 0.5).max() < 0.05


def test_starts_are_spread_as_recorded(recorded: dict[str, np.ndarray]) -> None:
    theirs = recorded["obs"][:: DMSD.horizon]
    ours = DMSD().reset(range(1000))
    bounds = np.array([0.25, 0.25, 0.1, 0.1, 1.5, 1.5])
    for starts in (theirs, ours):
        # Uniform over ±bound: a thousand draws nearly fill it, with deviation bound/√3.
        assert (np.abs(starts) <= bounds).all()
        np.testing.assert_allclose(np.abs(starts).max(axis=0), bounds, rtol=0.02)
        np.testing.assert_allclose(starts.std(axis=0), bounds / np.sqrt(3), rtol=0.06)


def test_one_step_by_hand() -> None:
    task = DMSD()
    task.restore(np.array([[1.0, 0.5, 0.2, -0.1, 1.04, 0.48]]))
    found = task.step(np.array([[1.0, -3.0]]))  # beyond −1: clipped
    v1 = 0.2 + 0.01 * (-4 * 1.0 + 2 * 0.5 - 8 * 0.2 + 4 * -0.1 + 30)
    v2 = -0.1 + 0.01 * (2 * 1.0 - 4 * 0.5 + 4 * 0.2 - 8 * -0.1 - 30)
    np.testing.assert_allclose(found.observations, [[1.04, 0.48, v1, v2, 1.04, 0.48]], rtol=1e-6)
    np.testing.assert_allclose(found.rewards, [-2 * np.log(0.01)], rtol=1e-4)


def test_an_episode_in_a_batch_equals_the_same_alone() -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (DMSD.horizon, 7, 2)).astype(np.float32)
    batch, env = DMSD(), DMSDEnv()
    starts = batch.reset(range(7))
    steps = [batch.step(action) for action in actions]
    for e in (0, 6):
        np.testing.assert_array_equal(env.reset(seed=e)[0], starts[e])
        for action, step in zip(actions, steps, strict=True):
            observation, reward, terminal, timeout, _ = env.step(action[e])
            np.testing.assert_array_equal(observation, step.observations[e])
            assert (reward, terminal, timeout) == (
                step.rewards[e],
                step.terminals[e],
                step.timeouts[e],
            )


def test_without_a_seed_the_next_episode_is_another_one_but_repeatable() -> None:
    first, second = DMSDEnv(), DMSDEnv()
    starts = [(env.reset(seed=4)[0], env.reset()[0], env.reset()[0]) for env in (first, second)]
    np.testing.assert_array_equal(*starts)
    assert len({start.tobytes() for start in starts[0]}) == 3
