"""What is settled before the loop: the head that describes the data's actions, where Q starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acpo.algorithms.bc import BC
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.fitting import load as load_behavior
from acpo.data.dataset import Dataset, from_arrays
from acpo.training.prepare import Normalizer, prepare
from harness import tiny_acpo

ROWS, S, A = 3_000, 2, 2
FIT = BehaviorConfig(hidden=(16, 16), max_steps=600, check_every=200, patience=9)


def dataset(kind: str) -> Dataset:
    """One policy's actions: tanh of a Gaussian's, or a Gaussian's of which a third is clipped."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(ROWS, S))
    u = 0.8 * observations + 0.4 * rng.normal(size=(ROWS, A))
    actions = np.tanh(u) if kind == "squashed" else np.clip(u, -1.0, 1.0)
    return from_arrays(
        observations=observations,
        actions=actions,
        rewards=rng.normal(size=ROWS),
        terminals=np.zeros(ROWS, bool),
        timeouts=np.arange(ROWS) % 30 == 29,
        name=kind,
        source=kind,
    )


def acpo(**changes: Any) -> Any:
    return replace(tiny_acpo(hidden=(8, 8), head="auto", behavior=FIT), **changes)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_the_head_is_the_one_the_actions_came_from(kind: str, tmp_path: Path) -> None:
    data = dataset(kind)
    if kind == "plain":
        assert np.mean(np.abs(data.actions) == 1.0) > 0.2
    found = prepare(data, acpo(), directory=tmp_path)
    assert found.algorithm.head == kind
    assert prepare(data, acpo(), directory=tmp_path).algorithm.head == kind
    assert prepare(data, BC(behavior=FIT)).algorithm.head == kind


def test_a_fit_that_went_beyond_its_trial_keeps_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acpo.training.prepare.HEAD_TRIAL_STEPS", 200)
    data = dataset("plain")
    assert prepare(data, acpo()).algorithm.head == "plain"
    prepare(data, acpo(head="squashed"), directory=tmp_path)
    assert prepare(data, acpo(), directory=tmp_path).algorithm.head == "squashed"


def test_a_trial_that_ends_at_a_look_beyond_its_steps_is_no_fit_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks every 200 steps, trials of 300: both heads stop at 400, and neither was chosen yet."""
    monkeypatch.setattr("acpo.training.prepare.HEAD_TRIAL_STEPS", 300)
    data = dataset("plain")
    assert prepare(data, acpo(), directory=tmp_path).algorithm.head == "plain"
    steps = {file.stem: load_behavior(file).steps for file in tmp_path.glob("behavior/*.npz")}
    assert sorted(map(int, steps.values())) == [400, 600]
    # As if the chosen one had been fitted to where its mass is less than that of the other's trial.
    monkeypatch.setattr(
        "acpo.behavior.fitting.Behavior.log_mass",
        lambda self, *_: np.array([1.0 if self.head.kind == "squashed" else 0.0]),
    )
    assert prepare(data, acpo(), directory=tmp_path).algorithm.head == "plain"


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_observations_are_normalised_however_small_their_unit_is(scale: float) -> None:
    observations = np.random.default_rng(0).normal(size=(500, 1)) * scale
    constant = np.full((500, 1), 0.1, np.float32)
    data = from_arrays(
        observations=np.concatenate([observations, constant], axis=1),
        actions=np.linspace(-1, 1, 500)[:, None],
        rewards=np.zeros(500),
        terminals=np.zeros(500, bool),
        timeouts=np.arange(500) % 50 == 49,
        constant_columns="keep",
        name="x",
        source="x",
    )
    found = Normalizer.fit(data, enabled=True)
    np.testing.assert_allclose(found.std, [scale, 1.0], rtol=0.1)


def test_on_clipped_actions_a_density_would_choose_the_head_that_fits_worse(tmp_path: Path) -> None:
    """A squashed density has no bound at the bounds: why heads are not compared by it."""
    data = dataset("plain")
    trials = {}
    for head in ("plain", "squashed"):
        found = prepare(data, acpo(head=head), directory=tmp_path / head)
        trials[head] = found.facts["behavior_held_out_log_prob"]
    assert trials["squashed"] > trials["plain"]


@pytest.mark.parametrize("ends", [0, 40])
@pytest.mark.parametrize("scale", [None, 3.0])
def test_values_start_where_bellman_backups_of_a_constant_end(
    ends: int, scale: float | None
) -> None:
    plain = dataset("plain")
    terminals = np.arange(len(plain)) < ends
    data = replace(plain, rewards=plain.rewards + np.float32(2.0), terminals=terminals)
    found = prepare(data, acpo(head="plain", reward_scale=scale)).algorithm
    c = 0.0
    for _ in range(3_000):
        c = np.mean(found.reward_scale * data.rewards + 0.99 * (1 - terminals) * c)
    assert found.value_start == pytest.approx(c, rel=1e-4)


def test_a_value_start_that_was_given_is_kept_and_no_discount_without_an_end_is_no_trap() -> None:
    data = dataset("plain")
    assert prepare(data, acpo(head="plain", value_start=7.0)).algorithm.value_start == 7.0
    assert prepare(data, acpo(head="plain", gamma=1.0)).algorithm.value_start == 0.0


def half_random(gain: float, terminals: bool = False) -> Dataset:
    """Episodes of 20 steps, every second one of wide actions and no reward, else narrow and `gain`.

    Both kinds are told apart by the first observation, so that πβ knows which is which.
    """
    rng = np.random.default_rng(0)
    wide = np.arange(ROWS) // 20 % 2 == 0
    noise = np.where(wide[:, None], 0.5, 0.02) * rng.normal(size=(ROWS, A))
    last = np.arange(ROWS) % 20 == 19
    return from_arrays(
        observations=np.stack([wide.astype(float), rng.normal(size=ROWS)], axis=1),
        actions=np.clip(noise, -1.0, 1.0),
        rewards=np.where(wide, 0.0, gain) + 0.1 * gain * rng.normal(size=ROWS),
        terminals=last if terminals else np.zeros(ROWS, bool),
        timeouts=last,
        name="half random",
        source="half random",
    )


@pytest.mark.parametrize("terminals", [False, True])
@pytest.mark.parametrize("alpha", [0.1, 3.0])
def test_entropy_is_worth_less_where_it_would_sway_values_more_than_rewards_do(
    alpha: float, terminals: bool
) -> None:
    data = half_random(1.0, terminals)
    found = prepare(data, acpo(head="plain", alpha=alpha, reward_scale=1.0))
    log_beta = found.rows[:, -2].astype(float).clip(-20, 20)

    def spread(x: np.ndarray) -> float:
        """Of values that every row sums up by itself, with 3,000 more steps where it was cut."""
        values = []
        for row, episode in enumerate(data.episode_ids):
            ahead = x[row:][data.episode_ids[row:] == episode]
            if not terminals:
                more = np.full(3_000, x[data.episode_ids == episode].mean())
                ahead = np.concatenate([ahead, more])
            values.append(0.99 ** np.arange(len(ahead)) @ ahead)
        return float(np.std(values))

    ratio = alpha * spread(log_beta) / spread(data.rewards.astype(float))
    assert (ratio > 1.0) == (alpha == 3.0)
    expected = min(1.0, ratio**-2)
    assert found.algorithm.entropy_price == pytest.approx(expected, rel=1e-4)
    assert found.facts["entropy_price"] == found.algorithm.entropy_price


def test_an_entropy_price_that_was_given_is_kept_and_equal_rewards_ask_for_no_other() -> None:
    wide = half_random(1.0)
    loud = {"head": "plain", "alpha": 3.0, "reward_scale": 1.0}
    assert prepare(wide, acpo(**loud, entropy_price=0.3)).algorithm.entropy_price == 0.3
    silent = replace(wide, rewards=np.zeros_like(wide.rewards))
    assert prepare(silent, acpo(**loud)).algorithm.entropy_price == 1.0
    assert 0 < prepare(wide, acpo(**loud, gamma=1.0)).algorithm.entropy_price < 1.0


def test_the_price_of_entropy_does_not_hang_on_the_unit_of_rewards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loud = {"head": "plain", "alpha": 30.0}
    prices = [prepare(half_random(g), acpo(**loud)).algorithm.entropy_price for g in (1.0, 1e3)]
    assert prices[0] < 0.9
    assert prices[1] == pytest.approx(prices[0], rel=1e-3)
    # Of very much data some episodes do.
    monkeypatch.setattr("acpo.training.prepare.MAX_FIT_ROWS", 1_500)
    some = prepare(half_random(1.0), acpo(**loud)).algorithm.entropy_price
    assert some == pytest.approx(prices[0], rel=0.3)
    assert some != prices[0]
