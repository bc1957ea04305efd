"""What must not matter: the unit of rewards, the origin and the unit of observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import acpo
from acpo.data import Dataset
from harness import SETTINGS, tiny_acpo


@pytest.fixture(scope="module")
def data(hopper_file: Path) -> Dataset:
    return acpo.load_dataset(hopper_file)


def trained_actions(data: Dataset) -> np.ndarray:
    run = acpo.train(data, tiny_acpo(), **{**SETTINGS, "env": "none"})
    return run.policy(data.observations[:200])


@pytest.fixture(scope="module")
def plain(data: Dataset) -> np.ndarray:
    return trained_actions(data)


def test_other_data_gives_another_policy(data: Dataset, plain: np.ndarray) -> None:
    """The tests below could not fail if nothing were learned."""
    other = replace(data, rewards=-data.rewards, episode_returns=-data.episode_returns)
    assert np.abs(trained_actions(other) - plain).max() > 1e-2


@pytest.mark.parametrize("factor", [10.0, 0.01])
def test_rewards_in_another_unit_give_the_same_policy(
    data: Dataset, plain: np.ndarray, factor: float
) -> None:
    scaled = replace(
        data,
        rewards=data.rewards * np.float32(factor),
        episode_returns=data.episode_returns * factor,
    )
    np.testing.assert_allclose(trained_actions(scaled), plain, atol=2e-3)


def test_shifted_and_scaled_observations_give_the_same_policy(
    data: Dataset, plain: np.ndarray
) -> None:
    def moved(s: np.ndarray) -> np.ndarray:
        return (s * 4.0 + 3.0).astype(np.float32)

    other = replace(
        data,
        observations=moved(data.observations),
        next_observations=moved(data.next_observations),
    )
    np.testing.assert_allclose(trained_actions(other), plain, atol=2e-3)
