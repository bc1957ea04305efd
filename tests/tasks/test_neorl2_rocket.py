"""RocketRecovery flies as NeoRL2's recordings do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from acpo.tasks.neorl2.batched import Steps
from acpo.tasks.neorl2.rocket_recovery import PIXEL, PUSH, RocketRecovery, RocketRecoveryEnv


class Flights(NamedTuple):
    """Recorded rows, with how long after the start and in which phase of the wind they were."""

    observations: np.ndarray
    actions: np.ndarray
    following: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    ages: np.ndarray
    phases: np.ndarray

    def rows(self, chosen: np.ndarray) -> Flights:
        return Flights(*(array[chosen] for array in self))

    @property
    def silent(self) -> np.ndarray:
        """No engine burns, so nothing is random."""
        return (self.actions[:, 0] <= 0) & (np.abs(self.actions[:, 1]) <= 0.5)

    @property
    def touching(self) -> np.ndarray:
        """Low and tilted: a leg may be on the ground, which is not modelled."""
        tilt = np.maximum(np.abs(self.observations[:, 4]), np.abs(self.following[:, 4]))
        return (self.following[:, 1] < 0.08) & (tilt > 0.4)

    def model(self, scatter: Any = (0.0, 0.0)) -> Steps:
        """What follows by the model, were thrust scattered so: [2] or [n, 2], in [−1, 1]."""
        task = RocketRecovery()
        draws = np.broadcast_to(scatter, (len(self.ages), 2))[:, None] * PIXEL
        task.restore(self.observations, self.ages, self.phases, draws)
        return task.step(self.actions)


def blow(phases: np.ndarray) -> np.ndarray:
    return 10 * np.tanh(np.sin(0.02 * phases) + np.sin(0.01 * np.pi * phases))


@pytest.fixture(scope="module")
def flights(shared_data: Path) -> Flights:
    data = np.load(shared_data / "neorl2" / "RocketRecovery-val.npz")
    names = ("obs", "action", "next_obs", "reward", "done")
    observations, actions, following, rewards, done = (data[name] for name in names)
    starts = np.r_[0, np.flatnonzero(done)[:-1] + 1]
    episode = np.searchsorted(starts, np.arange(len(done)), side="right") - 1
    ages = np.arange(len(done)) - starts[episode]
    # Two winds in a row tell the phase of the episode's first observation.
    candidates = np.arange(-9999, 50_000)
    winds = blow(candidates)
    distance = [
        np.abs(winds[:-1] - observations[row, 6]) + np.abs(winds[1:] - following[row, 6])
        for row in starts
    ]
    first = candidates[np.argmin(distance, axis=1)]
    return Flights(
        observations, actions, following, rewards, done > 0, ages, first[episode] + ages + 1
    )


def test_recorded_winds_are_met(flights: Flights) -> None:
    np.testing.assert_allclose(blow(flights.phases), flights.following[:, 6], atol=1e-6)


def test_recorded_flight_without_thrust_is_met(flights: Flights) -> None:
    free = flights.silent & ~flights.touching
    # While the legs move in, Box2D stops iterating short of its solution.
    for age, most, atol, reward_atol in ((26, 500, 3e-6, 1e-4), (1, 25, 6e-5, 6e-3)):
        rows = flights.rows(free & (flights.ages >= age) & (flights.ages <= most))
        found = rows.model()
        assert len(rows.ages) > 1500
        np.testing.assert_allclose(found.observations, rows.following, atol=atol)
        np.testing.assert_allclose(found.rewards, rows.rewards, atol=reward_atol)
        np.testing.assert_array_equal(found.terminals, rows.terminals)


def test_recorded_thrust_is_met_but_for_its_scatter(flights: Flights) -> None:
    """Velocities are linear in the two unknown draws: three numbers determine them, and more."""
    rows = flights.rows(~flights.silent & ~flights.touching & (flights.ages > 0))
    assert len(rows.ages) > 15_000
    middle, up, across = (
        rows.model(scatter).observations[:, 2:6].astype(np.float64)
        for scatter in ((0, 0), (1, 0), (0, 1))
    )
    inverse = np.linalg.pinv(np.stack([up - middle, across - middle], axis=2))
    scatter = np.einsum("nij,nj->ni", inverse, rows.following[:, 2:6] - middle)
    found = rows.model(scatter)
    np.testing.assert_allclose(found.observations, rows.following, atol=3e-5)
    np.testing.assert_allclose(found.rewards, rows.rewards, atol=2e-3)
    np.testing.assert_array_equal(found.terminals, rows.terminals)
    # The draws are uniform over [−1, 1].
    main = rows.actions[:, 0] > 0
    assert np.abs(scatter[main]).max() < 1.001
    np.testing.assert_allclose(scatter[main].mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(scatter[main].std(axis=0), 1 / np.sqrt(3), rtol=0.02)


def test_recorded_starts_are_met(flights: Flights) -> None:
    """Two forces explain the six numbers of a first observation."""
    rows = flights.rows(flights.ages == 0)
    count = len(rows.ages)

    def start(x: float, y: float) -> np.ndarray:
        pushes, scatter = np.full((count, 2), (x, y)), np.zeros((count, 1, 2))
        return RocketRecovery().launch(pushes, rows.phases - 1, scatter).astype(np.float64)

    still, unit = start(0, 0), 100.0
    slopes = np.stack([start(unit, 0) - still, start(0, unit) - still], axis=2)[:, 2:4] / unit
    pushes = np.linalg.solve(slopes, (rows.observations - still)[:, 2:4, None])[..., 0]
    assert np.abs(pushes).max() < PUSH
    assert np.abs(pushes).max() > 0.95 * PUSH
    found = RocketRecovery().launch(pushes, rows.phases - 1, np.zeros((count, 1, 2)))
    np.testing.assert_allclose(found, rows.observations, atol=1e-6)


def fly(observations: np.ndarray) -> np.ndarray:
    """Lean against the drift, and brake."""
    x, y, vx, vy, angle, rate, _ = observations.T
    lean = np.clip(0.5 * x + vx, -0.4, 0.4)
    main, side = 10 * (0.55 * np.abs(x) - y - vy) - 1, 10 * (angle - lean) + 20 * rate
    return np.stack([main, side], axis=1).clip(-1, 1).astype(np.float32)


def returns_and_ends(episodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    task = RocketRecovery()
    observations = task.reset(range(episodes))
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
    over = np.zeros(episodes, dtype=bool)
    while not over.all():
        lengths += ~over
        observations, rewards, terminals, timeouts = task.step(fly(observations))
        returns, over = returns + rewards, terminals | timeouts
    return returns, lengths, observations


def test_flights_end_where_the_published_environment_ends_them() -> None:
    """Measured there from the same seeds, with the wind's phase of ours put in."""
    returns, lengths, last = returns_and_ends(4)
    np.testing.assert_array_equal(lengths, [115, 127, 134, 123])
    np.testing.assert_allclose(returns, [219.03619, 155.98796, 193.37878, 175.21996], atol=2e-3)
    places = [
        [0.085288, 0.047427],
        [0.108126, 0.046819],
        [-0.078803, 0.047473],
        [-0.008083, 0.047022],
    ]
    np.testing.assert_allclose(last[:, :2], places, atol=1e-5)


def test_an_episode_in_a_batch_equals_the_same_alone() -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (200, 7, 2)).astype(np.float32)
    batch, env = RocketRecovery(), RocketRecoveryEnv()
    starts = batch.reset(range(7))
    steps = [batch.step(action) for action in actions]
    assert steps[-1].terminals.all()
    for e in (0, 6):
        np.testing.assert_array_equal(env.reset(seed=e)[0], starts[e])
        for action, step in zip(actions, steps, strict=True):
            observation, reward, terminal, timeout, _ = env.step(action[e])
            np.testing.assert_array_equal(observation, step.observations[e])
            assert (reward, terminal, timeout) == (step.rewards[e], step.terminals[e], False)


def test_an_ended_episode_stays_as_it_ended() -> None:
    task = RocketRecovery()
    task.reset(range(5))
    ends: dict[int, np.ndarray] = {}
    for _ in range(RocketRecovery.horizon + 10):
        before = set(ends)
        found = task.step(np.zeros((5, 2)))
        for e in np.flatnonzero(found.terminals):
            ends.setdefault(int(e), found.observations[e])
        for e in before:
            assert found.terminals[e]
            assert not found.timeouts[e]
            assert found.rewards[e] == 0
            np.testing.assert_array_equal(found.observations[e], ends[e])
    assert set(ends) == set(range(5))


def test_an_episode_times_out_at_its_horizon() -> None:
    """A rocket that stays above the ground for 500 steps."""
    task = RocketRecovery()
    observations = task.reset([1])
    timeouts = []
    for _ in range(RocketRecovery.horizon):
        actions = fly(observations - np.array([0, 0.5, 0, 0, 0, 0, 0], dtype=np.float32))
        found = task.step(actions)
        observations = found.observations
        timeouts.append(bool(found.timeouts[0]))
        assert not found.terminals[0]
    assert timeouts == [False] * 499 + [True]


def test_gymnasium_has_no_complaint() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(RocketRecoveryEnv(), skip_render_check=True)
