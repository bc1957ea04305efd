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
