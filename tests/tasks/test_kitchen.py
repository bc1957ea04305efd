"""Kitchen has D4RL's observations, controller, rewards and ends, and repeats its demonstrations."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from acpo.errors import UserError
from acpo.tasks import kitchen
from acpo.tasks.kitchen import GOALS, NOISE, TASKS, is_complete, make_kitchen

installed = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium_robotics") is None,
    reason="gymnasium-robotics is not installed",
)
REST = np.zeros(9, np.float32)


@pytest.fixture
def mixed() -> Any:
    return make_kitchen("mixed").unwrapped


@pytest.fixture(scope="module")
def demonstrations(shared_data: Path) -> dict[str, np.ndarray]:
    """D4RL's kitchen-complete-v0."""
    path = shared_data / "d4rl" / "mini_kitchen_microwave_kettle_light_slider-v0.hdf5"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with h5py.File(path) as file:
        rows = {name: file[name][:] for name in ("observations", "actions", "rewards")}
        ends = np.flatnonzero(file["terminals"][:]) + 1
    return rows | {"starts": np.array([0, *ends[:-1]]), "ends": ends}


@installed
def test_an_observation_is_readings_then_goal(mixed: Any) -> None:
    mixed.reset(seed=0)
    observation, *_ = mixed.step(REST)
    assert observation.shape == mixed.observation_space.shape == (60,)
    places = {
        "robot:panda0_joint1": 0,
        "robot:panda0_joint7": 6,
        "robot:panda0_finger_joint1": 7,
        "knob_Joint_2": 11,
        "bottom_left_burner": 12,
        "light_switch": 17,
        "light_joint": 18,
        "slide_cabinet": 19,
        "microwave": 22,
        "kettle": 23,
    }
    assert {name: mixed.model.joint(name).qposadr[0] for name in places} == places
    assert (np.abs(observation[:30] - mixed.data.qpos) <= NOISE).all()
    goal = np.zeros(30)
    goal[[11, 12, 17, 18, 22]] = -0.88, -0.01, -0.69, -0.05, -0.75
    goal[23:] = -0.23, 0.75, 1.62, 0.99, 0, 0, -0.06
    assert np.array_equal(observation[30:], goal)


@installed
def test_an_action_moves_the_target_from_the_last_reading(mixed: Any) -> None:
    reading, _ = mixed.reset(seed=0)
    action = np.array([0.5, 0.5, 1, 1, -1, 7, 0, 1, -1])
    mixed.step(action)
    target = reading[:9] + 2.0 * np.clip(action, -1, 1) * 40 * 0.002
    # The fingers open by 4 cm at most.
    np.testing.assert_allclose(mixed.data.ctrl, [*target[:7], 0.04, 0.0])
    assert mixed.data.time == pytest.approx(0.08)


@installed
def test_every_episode_starts_in_one_state_read_with_noise(mixed: Any) -> None:
    noise = []
    for seed in range(200):
        observation, _ = mixed.reset(seed=seed)
        assert np.array_equal(mixed.data.qpos, kitchen.START)
        assert not mixed.data.qvel.any()
        noise.append(observation[:30] - kitchen.START)
    most = np.abs(noise).max(axis=0)
    assert ((most > 0.95 * NOISE) & (most <= NOISE * (1 + 1e-9))).all()


@installed
def test_without_noise_it_moves_as_frankakitchen(
    mixed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium_robotics.envs.franka_kitchen.kitchen_env import KitchenEnv as FrankaKitchen

    franka = FrankaKitchen(robot_noise_ratio=0.0, object_noise_ratio=0.0)
    monkeypatch.setattr(kitchen, "NOISE", np.zeros(30))
    draw = np.random.default_rng(0)
    ours, theirs = mixed.reset(seed=0)[0], franka.reset(seed=0)[0]["observation"]
    for _ in range(15):
        assert np.array_equal(ours[:30], np.concatenate([theirs[:9], theirs[18:39]]))
        action = draw.uniform(-1, 1, 9)
        ours, theirs = mixed.step(action)[0], franka.step(action)[0]["observation"]
    franka.close()


@installed
def test_the_pedestal_is_only_for_show(mixed: Any) -> None:
    model = mixed.model
    (pedestal,) = np.flatnonzero(model.geom_bodyid == model.body("panda0_link0").parentid[0])
    assert np.array_equal(model.geom_size[pedestal][:2], [0.12, 0.9])
    assert model.geom_contype[pedestal] == model.geom_conaffinity[pedestal] == 0


@installed
@pytest.mark.parametrize("kind", ["complete", "partial", "mixed"])
def test_each_task_pays_once_and_the_last_ends_the_episode(kind: kitchen.Kind) -> None:
    env: Any = make_kitchen(kind).unwrapped
    for _ in range(2):  # the second episode asks for all four again
        env.reset(seed=0)
        rewards, terminals = [], []
        for task in TASKS[kind]:
            env.data.qpos[list(GOALS[task])] = list(GOALS[task].values())
            for _ in range(2):
                _, reward, terminal, timeout, _ = env.step(REST)
                rewards.append(reward)
                terminals.append(terminal)
                assert not timeout
        assert rewards == [1, 0] * 4
        assert terminals == [False] * 6 + [True] * 2


def test_a_task_is_complete_within_three_tenths_of_its_goal() -> None:
    for task, goal in GOALS.items():
        observation = np.zeros(60)
        observation[list(goal)] = list(goal.values())
        first = next(iter(goal))
        for distance in (0.299, -0.299, 0.301, -0.301):
            off = observation.copy()
            off[first] += distance
            assert is_complete(task, off) == (abs(distance) < 0.3)


@installed
def test_an_episode_ends_after_280_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kitchen, "FRAME_SKIP", 1)  # a fortieth of the time
    env = make_kitchen("partial")
    env.reset(seed=0)
    for step in range(1, 281):
        _, reward, terminal, timeout, _ = env.step(REST)
        assert (reward, terminal, timeout) == (0.0, False, step == 280)


@installed
def test_a_seed_repeats_an_episode_exactly() -> None:
    def episode(env: Any) -> np.ndarray:
        draw = np.random.default_rng(0)
        rows = [env.reset(seed=5)[0]]
        return np.array(rows + [env.step(draw.uniform(-1, 1, 9))[0] for _ in range(10)])

    env = make_kitchen("complete")
    first = episode(env)
    assert np.array_equal(episode(env), first)
    assert np.array_equal(episode(make_kitchen("complete")), first)
    assert not np.array_equal(env.reset(seed=6)[0], first[0])


@installed
def test_gymnasiums_checker_is_content(mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(mixed, skip_render_check=True)
    assert capsys.readouterr() == ("", "")


def test_without_gymnasium_robotics_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kitchen, "_model", kitchen._model.__wrapped__)  # nothing cached
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'acpo\[robotics\]'"):
        make_kitchen("mixed")


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    unknown: Any = "full"
    with pytest.raises(UserError, match="'full'; there are complete, partial, mixed"):
        make_kitchen(unknown)


def test_d4rls_data_has_these_goals_and_counts_these_tasks(
    demonstrations: dict[str, np.ndarray],
) -> None:
    goal = np.zeros(30)
    for task in TASKS["complete"]:
        goal[list(GOALS[task])] = list(GOALS[task].values())
    observations = demonstrations["observations"]
    assert (observations[:, 30:] == goal.astype(np.float32)).all()
    counted = [sum(is_complete(t, row) for t in TASKS["complete"]) for row in observations]
    assert np.array_equal(counted, demonstrations["rewards"])


def test_d4rls_data_has_this_noise(demonstrations: dict[str, np.ndarray]) -> None:
    # Objects that no hand has touched yet: the demonstrations begin with the microwave.
    rows = demonstrations["starts"][:, None] + np.arange(10)
    readings = demonstrations["observations"][rows][..., 9:30]
    spread = np.ptp(readings.reshape(-1, 21), axis=0) / 2
    np.testing.assert_allclose(spread, NOISE[9:], rtol=0.1)


@installed
@pytest.mark.parametrize("number", [0, 5, 10, 15])
def test_a_demonstrations_actions_do_its_tasks_when_it_did_them(
    demonstrations: dict[str, np.ndarray], number: int
) -> None:
    """From the first observation on, only the recorded actions and readings drive the robot.

    The readings belong to it: an action was recorded relative to a reading, and relative to
    another its noise, ±0.01 rad in every step, adds up to a walk that misses the handles.
    """
    rows = slice(demonstrations["starts"][number], demonstrations["ends"][number])
    observations = demonstrations["observations"][rows].astype(np.float64)
    env: Any = make_kitchen("complete").unwrapped
    env.reset(seed=0)
    env.data.qpos[:] = observations[0, :30]
    rewards, errors = [], []
    for row, (action, after) in enumerate(
        zip(demonstrations["actions"][rows], observations[1:], strict=False)
    ):
        env.reading = observations[row, :30]
        _, reward, terminal, _, _ = env.step(action)
        rewards.append(reward)
        errors.append(env.data.qpos - after[:30])
        if terminal:
            break
    recorded = np.diff(demonstrations["rewards"][rows])
    assert sum(rewards) == 4
    assert np.abs(np.flatnonzero(rewards) - np.flatnonzero(recorded > 0)).max() <= 2
    # The robot and the doors are where the demonstration saw them, but for its noise.
    error = np.abs(errors)
    assert error[:, :7].mean() < 1.1 * NOISE[:7].mean() / 2
    assert error[:, [17, 19, 22]].max() < 0.06
