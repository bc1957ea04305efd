"""Pipeline: water that arrives nineteen steps after it was let in."""

from __future__ import annotations

import numpy as np
import pytest

from acpo.tasks.neorl2.pipeline import Pipeline, PipelineEnv


def walk(episodes: int, steps: int, seed: int = 0) -> np.ndarray:
    """Actions [steps, episodes, 1]: noise, but each episode holds on long enough to hit a bound."""
    generator = np.random.default_rng(seed)
    drift = np.where(np.arange(episodes) % 2, 1.0, -1.0)[:, None]
    return (generator.uniform(-1, 1, (steps, episodes, 1)) + 0.7 * drift).astype(np.float32)


@pytest.fixture(scope="module")
def episodes() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Observations [1001, 4, 52], actions, rewards and timeouts of four full episodes."""
    task, actions = Pipeline(), walk(4, Pipeline.horizon)
    start = task.reset(range(4))
    steps = [task.step(action) for action in actions]
    observations = np.stack([start, *(step.observations for step in steps)])
    assert not np.any([step.terminals for step in steps])
    rewards = np.stack([step.rewards for step in steps])
    return observations, actions, rewards, np.stack([step.timeouts for step in steps])


def test_what_comes_out_was_let_in_nineteen_steps_before(episodes: tuple) -> None:
    observations, actions, _, _ = episodes
    gate = observations[0, :, 0].copy()
    let_in = [gate]
    for action in np.clip(actions[..., 0], -1, 1):
        gate = np.clip(gate + action, 0, 200)
        let_in.append(gate)
    flow = observations[..., 0]
    np.testing.assert_array_equal(flow[19:], np.stack(let_in)[:-19])
    np.testing.assert_array_equal(flow[:20], np.repeat(flow[:1], 20, axis=0))
    assert flow.min() == 0
    assert flow.max() == 200


def test_an_observation_remembers_flows_and_actions(episodes: tuple) -> None:
    observations, actions, _, _ = episodes
    flow, action = observations[..., 0], np.clip(actions[..., 0], -1, 1)
    for age in range(25):
        np.testing.assert_array_equal(observations[age + 1 :, :, 2 + age], flow[: -age - 1])
        np.testing.assert_array_equal(observations[age + 1 :, :, 27 + age], action[: 1000 - age])
    np.testing.assert_array_equal(observations[0, :, 2:27], np.repeat(flow[0][:, None], 25, axis=1))
    assert not observations[0, :, 27:].any()


def test_the_reward_is_one_where_the_flow_is_as_wanted(episodes: tuple) -> None:
    observations, _, rewards, _ = episodes
    error = np.abs(observations[1:, :, 0] - observations[1:, :, 1])
    np.testing.assert_allclose(rewards, (2 - error / 100) ** 2 - 3, atol=1e-6)
    task = Pipeline()
    task.restore(np.r_[np.full(27, 80.0), np.zeros(25)][None])
    assert task.step(np.zeros((1, 1))).rewards == [1.0]


def test_episodes_end_at_the_horizon_only(episodes: tuple) -> None:
    timeouts = episodes[3]
    assert timeouts[-1].all()
    assert not timeouts[:-1].any()


def test_starts_and_wanted_flows_are_spread_as_published() -> None:
    task = Pipeline()
    start = task.reset(range(300))
    steps = [task.step(np.zeros((300, 1))) for _ in range(Pipeline.horizon)]
    wanted = np.stack([start[:, 1], *(step.observations[:, 1] for step in steps)])
    assert set(np.unique(wanted)) == {50, 80, 110, 140}
    # One draw in four repeats the flow: 0.003 · 3/4 changes per step.
    np.testing.assert_allclose((np.diff(wanted, axis=0) != 0).mean(), 0.00225, rtol=0.1)
    first = [(wanted[0] == flow).mean() for flow in (50, 80, 110, 140)]
    np.testing.assert_allclose(first, 0.25, atol=0.1)
    flows = start[:, 0]
    assert flows.min() >= 80
    assert flows.max() <= 120
    np.testing.assert_allclose([flows.mean(), flows.std()], [100, 40 / np.sqrt(12)], rtol=0.05)


def test_returns_are_those_of_the_published_environment() -> None:
    """Measured there from the same seeds, made to forget the flow wanted in its last episode."""
    task, returns = Pipeline(), np.zeros(3)
    task.reset(range(3))
    for t in range(Pipeline.horizon):
        found = task.step(np.full((3, 1), np.sin(t / 50)))
        returns += found.rewards
    np.testing.assert_allclose(returns, [-1177.441624, -924.807033, -686.060821], atol=1e-5)
    np.testing.assert_allclose(found.observations[:, 0], [113.772125, 113.772125, 104.235565])


def test_the_observation_is_a_complete_state(episodes: tuple) -> None:
    """Restored from any observation, the episode goes on as it did."""
    observations, actions, rewards, _ = episodes
    now, then = observations[:-1].reshape(-1, 52), observations[1:].reshape(-1, 52)
    task = Pipeline()
    task.restore(now)
    found = task.step(actions.reshape(-1, 1))
    kept = now[:, 1] == then[:, 1]
    np.testing.assert_array_equal(found.observations[kept], then[kept])
    np.testing.assert_array_equal(found.rewards[kept], rewards.reshape(-1)[kept])
    assert kept.mean() > 0.99


def test_an_episode_in_a_batch_equals_the_same_alone(episodes: tuple) -> None:
    observations, actions, rewards, _ = episodes
    env = PipelineEnv()
    np.testing.assert_array_equal(env.reset(seed=3)[0], observations[0, 3])
    for t in range(Pipeline.horizon):
        observation, reward, *_ = env.step(actions[t, 3])
        np.testing.assert_array_equal(observation, observations[t + 1, 3])
        assert reward == rewards[t, 3]
