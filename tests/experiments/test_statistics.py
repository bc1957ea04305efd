"""The interval of a mean over few seeds."""

import numpy as np
import pytest

from acpo.experiments.statistics import estimate


def test_mean_and_deviation_are_over_seeds_not_episodes():
    results = np.array([[0.0, 10.0], [20.0, 30.0]])
    found = estimate(results)
    assert found.mean == 15.0
    assert found.std == 10.0  # of 5 and 25


def test_interval_knows_that_episodes_of_one_seed_are_not_independent():
    # 1,000 episodes of each of three seeds; all the spread is between seeds. Resampling three
    # values with replacement gives each mean with known odds: 1/27 for thrice the lowest.
    results = np.repeat([[0.0], [30.0], [60.0]], 1_000, axis=1)
    found = estimate(results)
    assert (found.low, found.high) == (0.0, 60.0)


def test_interval_of_equal_seeds_is_that_of_their_episodes():
    rng = np.random.default_rng(1)
    episodes = rng.normal(0.0, 1.0, 400)
    found = estimate(np.tile(episodes, (5, 1)))
    # Five draws of 400: the standard error is σ/√2000.
    half = 1.96 * episodes.std() / np.sqrt(2_000)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)
    assert estimate(np.tile(episodes, (5, 1))) == found


def test_one_seed_has_no_deviation():
    assert estimate(np.array([[1.0, 2.0, 3.0]])).std == 0.0
