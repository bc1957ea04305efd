"""Simglucose's patients live through the days that NeoRL2 recorded of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from acpo.tasks.neorl2.glucose_model import PATIENTS, GlucoseModel
from acpo.tasks.neorl2.simglucose import Simglucose, SimglucoseEnv, infusion, integrate, reward

# The hour at which each validation episode began. It is not recorded, but the meals show it: at
# any other hour the replay is off by 2 mg/dl or more. (Six episodes end before a meal.)
HOURS = [
    *(15, 11, 15, 0, 14, 14, 9, 4, 8, 21, 4, 16, 6, 16, 12, 21, 14, 17, 19, 14, 15, 15, 4, 6, 3),
    *(15, 6, 8, 5, 19, 5, 23, 11, 7, 10, 15, 2, 11, 11, 9, 7, 3, 19, 0, 3, 0, 5, 6, 19, 13, 0, 5),
    *(11, 21, 5, 7, 4, 22, 0, 12, 1, 18),
]


def load(shared_data: Path, split: str) -> dict[str, np.ndarray]:
    return dict(np.load(shared_data / "neorl2" / f"Simglucose-{split}.npz"))


def test_recorded_days_are_met_from_their_first_minute_to_their_end(shared_data: Path) -> None:
    """All 62 validation episodes, given nothing but patient, hour and actions."""
    rows = load(shared_data, "val")
    ends = np.flatnonzero((rows["done"] > 0) | (rows["truncated"] > 0))
    starts = np.append(0, ends[:-1] + 1)
    task = Simglucose()
    table = task.restore(range(len(PATIENTS)), [0] * len(PATIENTS))
    same = (rows["obs"][starts, None, 1:] == table[:, 1:]).all(axis=2)
    assert (same.sum(axis=1) == 1).all()
    first = task.restore(same.argmax(axis=1).tolist(), HOURS)
    np.testing.assert_array_equal(first, rows["obs"][starts])

    worst = np.zeros((2, len(starts)))
    for t in range(Simglucose.horizon):
        now = np.minimum(starts + t, ends)
        running = starts + t <= ends
        found = task.step(rows["action"][now])
        np.testing.assert_array_equal(found.terminals, (rows["done"][now] > 0) & (now == ends))
        np.testing.assert_array_equal(found.timeouts[running], rows["truncated"][now][running] > 0)
        errors = (
            np.abs(found.observations - rows["next_obs"][now]).max(axis=1),
            np.abs(found.rewards - rows["reward"][now]),
        )
        worst = np.where(running, np.maximum(worst, errors), worst)
    # The recorded arithmetic was partly in single precision, to which the solver's choice of
    # steps is sensitive: its own tolerance is 1e-6 of up to 600 mg/dl. Most episodes agree to the
    # last bits of single precision all the same.
    assert worst[0].max() < 1e-3
    assert np.quantile(worst[0], 0.9) < 7e-5
    assert worst[1].max() < 1e-6


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_recorded_reward_follows_from_its_observations(shared_data: Path, split: str) -> None:
    rows = load(shared_data, split)
    glucose, following = (rows[key][:, 0].astype(np.float64) for key in ("obs", "next_obs"))
    np.testing.assert_allclose(reward(glucose, following), rows["reward"], rtol=0, atol=2e-7)


def test_reward_at_the_edges() -> None:
    """At 112.5 mg/dl, the risk's zero, nothing can be gained."""
    glucose = np.array([112.517, 112.517, 300.0, 300.0])
    following = np.array([112.517, 40.0, 600.0, 112.517])
    # ln(300)^1.084 = 6.6021, so the risk there is 10 · (1.509 · 1.2211)² = 33.95.
    np.testing.assert_allclose(reward(glucose, following), [1, -15, 0, 1.3395], atol=2e-4)


def test_fasting_patients_do_not_change_under_their_basal_insulin() -> None:
    model = GlucoseModel(range(len(PATIENTS)))
    none, some = np.zeros(len(PATIENTS)), np.ones(len(PATIENTS))
    state = model.fasting()
    change = model.slope(none, some, model.parameters.u2ss, none > 0)(state)
    np.testing.assert_allclose(change, 0, atol=1e-9)
    np.testing.assert_allclose(model.sensed(state), model.parameters.Gb)


def test_a_meal_is_neither_lost_nor_multiplied_on_its_way() -> None:
    """Stomach and gut together gain the meal and lose what appears in the plasma."""
    model = GlucoseModel(range(len(PATIENTS)))
    p = model.parameters
    ones = np.ones(len(PATIENTS))
    state = model.fasting()
    state[0], state[1], state[2] = 20_000.0, 10_000.0, 3_000.0
    running = np.zeros(len(PATIENTS), dtype=bool)
    change = model.slope(5_000.0 * ones, 45_000.0 * ones, p.u2ss, running)(state)
    absorbed = p.kabs * 3_000.0
    np.testing.assert_allclose(change[:3].sum(axis=0), 5_000.0 - absorbed)
    np.testing.assert_allclose(change[3], 0.9 * absorbed / p.BW, rtol=1e-9)


def test_the_stomach_empties_slowly_while_a_meal_is_half_gone() -> None:
    """At kmax when it is full or empty, at kmin between the fractions b and d of the meal."""
    model = GlucoseModel(range(len(PATIENTS)))
    p = model.parameters
    meal, none = np.full(len(PATIENTS), 80_000.0), np.zeros(len(PATIENTS))
    change = model.slope(none, meal, p.u2ss, none > 0)
    rates = []
    for content in (meal, meal * (p.b + p.d) / 2, 1e-3 * meal):
        state = model.fasting()
        state[1] = content
        rates.append(change(state)[2] / content)
    span = p.kmax - p.kmin
    # tanh(2.5) = 0.9866 where the stomach is full or empty.
    np.testing.assert_allclose((rates[0] - p.kmin) / span, 1, atol=0.01)
    np.testing.assert_allclose((rates[2] - p.kmin) / span, 1, atol=0.01)
    assert ((rates[1] - p.kmin) / span < 0.5).all()


def test_the_pump_gives_up_to_five_units_a_minute_in_its_steps() -> None:
    given = infusion(np.array([-1.0, 1.0, -0.99], dtype=np.float32))
    np.testing.assert_allclose(given, [0, 30_000, 150], rtol=1e-6)
    steps = infusion(np.linspace(-1, -0.9, 1000, dtype=np.float32)) / 0.05
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-2)


def test_the_solver_meets_known_solutions_each_with_steps_of_its_own() -> None:
    """A slow and a fast turn, x' = ωy and y' = −ωx, side by side and over three minutes."""
    speed = np.array([0.3, 40.0])
    state, step = np.array([[0.0, 0.0], [1.0, 1.0]]), None
    for _ in range(3):
        state, step = integrate(lambda s: np.stack([speed * s[1], -speed * s[0]]), state, step)
    np.testing.assert_allclose(state, [np.sin(3 * speed), np.cos(3 * speed)], atol=2e-4)
    np.testing.assert_allclose(state[:, 0], [np.sin(0.9), np.cos(0.9)], atol=1e-6)
    assert step is not None
    assert step[0] > 20 * step[1]


def test_all_patients_and_hours_are_drawn_alike() -> None:
    task = Simglucose()
    starts = task.reset(range(3000))
    for drawn, kinds in ((starts[:, 1], 15), (task._minute, 24)):
        counts = np.unique(drawn, return_counts=True)[1]
        assert len(counts) == kinds
        np.testing.assert_allclose(counts, 3000 / kinds, rtol=0.35)


def test_an_episode_in_a_batch_equals_the_same_alone() -> None:
    """Also beside one that has ended, here by an overdose."""
    actions = np.random.default_rng(0).uniform(-1, -0.98, (150, 5, 1)).astype(np.float32)
    actions[:, 2] = 0.5
    batch, env = Simglucose(), SimglucoseEnv()
    starts = batch.reset(range(5))
    steps = [batch.step(action) for action in actions]
    assert steps[-1].terminals[2]
    for e in (1, 2):
        np.testing.assert_array_equal(env.reset(seed=e)[0], starts[e])
        for action, step in zip(actions, steps, strict=True):
            observation, gained, terminal, _, _ = env.step(action[e])
            np.testing.assert_array_equal(observation, step.observations[e])
            assert (gained, terminal) == (step.rewards[e], step.terminals[e])


def test_gymnasium_has_no_complaint_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(SimglucoseEnv(), skip_render_check=True)
    assert capfd.readouterr() == ("", "")
