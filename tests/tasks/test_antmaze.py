"""AntMaze has D4RL's frame, mazes, goals and ends."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any, get_args

import mujoco
import numpy as np
import pytest

from acpo.errors import UserError
from acpo.tasks import antmaze
from acpo.tasks.antmaze import make_antmaze

SIZES = ("umaze", "medium-play", "large-play")


@pytest.fixture
def umaze() -> Any:
    return make_antmaze("umaze").unwrapped


def test_an_observation_is_position_then_velocity(umaze: Any) -> None:
    umaze.reset(seed=1)
    observation, *_ = umaze.step(np.full(8, 0.3, np.float32))
    assert observation.shape == umaze.observation_space.shape == (29,)
    mujoco.mj_kinematics(umaze.model, umaze.data)
    torso = umaze.data.body("torso")
    np.testing.assert_allclose(observation[:3], torso.xpos)
    np.testing.assert_allclose(observation[3:7], torso.xquat)
    for place, joint in enumerate(
        ("hip_1", "ankle_1", "hip_2", "ankle_2", "hip_3", "ankle_3", "hip_4", "ankle_4")
    ):
        assert observation[7 + place] == umaze.data.joint(joint).qpos
        assert observation[21 + place] == umaze.data.joint(joint).qvel
    assert np.array_equal(observation[15:21], umaze.data.joint("root").qvel)


def test_an_action_is_a_part_of_30_newton_metres_for_a_tenth_of_a_second(umaze: Any) -> None:
    assert (umaze.action_space.low == -1).all()
    assert (umaze.action_space.high == 1).all()
    umaze.reset(seed=0)
    umaze.step(np.array([0.5, -1, 7, 0, 0, 0, 0, 0]))
    torques = [umaze.data.joint(name).qfrc_actuator[0] for name in ("hip_4", "ankle_4", "hip_1")]
    assert torques == [15.0, -30.0, 30.0]
    assert umaze.data.time == pytest.approx(0.1)


def test_the_ant_is_as_heavy_and_its_contacts_as_soft_as_d4rls(umaze: Any) -> None:
    model = umaze.model
    capsules = [(0.2 * np.sqrt(2), 8), (0.4 * np.sqrt(2), 4)]  # length, number
    volume = 4 / 3 * np.pi * 0.25**3 + sum(
        count * np.pi * 0.08**2 * (length + 4 / 3 * 0.08) for length, count in capsules
    )
    assert model.body_subtreemass[model.body("torso").id] == pytest.approx(5.0 * volume)
    assert (model.geom_solimp[:, :3] == (0.8, 0.8, 0.01)).all()
    assert (model.dof_damping[6:] == 1).all()
    assert (model.dof_armature[6:] == 1).all()
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4


def test_the_ant_rests_as_deep_in_the_floor_as_in_older_mujocos(umaze: Any) -> None:
    """At 0.36987 m in MuJoCo 3.1.6 and 3.3.0; since 3.5 the file alone would lift it by 0.01."""
    umaze.reset(seed=0)
    for _ in range(100):
        observation, *_ = umaze.step(np.zeros(8))
    assert observation[2] == pytest.approx(0.36987, abs=1e-4)


def test_an_episode_starts_near_rest_at_the_origin(umaze: Any) -> None:
    starts = np.array([umaze.reset(seed=seed)[0] for seed in range(200)])
    rest = np.array([0, 0, 0.75, 1, *np.zeros(25)])
    noise = starts - rest
    # The quaternion's noise is shared by its normalisation.
    np.testing.assert_allclose(np.linalg.norm(starts[:, 3:7], axis=1), 1.0)
    position = np.delete(noise, np.s_[3:7], axis=1)[:, :11]
    assert 0.095 < np.abs(position).max() <= 0.1
    assert np.abs(position.mean()) < 0.01
    assert noise[:, 15:].std() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("maze", "cell"),
    [
        ("umaze", (0, 8)),
        ("umaze-diverse", (0, 8)),
        ("medium-play", (20, 20)),
        ("medium-diverse", (20, 20)),
        ("large-play", (32, 24)),
        ("large-diverse", (32, 24)),
    ],
)
def test_every_episode_draws_a_goal_in_d4rls_cell(
    maze: antmaze.Maze, cell: tuple[int, int]
) -> None:
    env: Any = make_antmaze(maze).unwrapped
    env.reset(seed=0)
    goals = []
    for _ in range(300):
        env.reset()
        goals.append(env.goal - cell)
    noise = np.array(goals)
    assert noise.min() >= 0
    assert 1.3 < noise.max() <= 1.5
    assert np.abs(noise.mean(axis=0) - 0.75).max() < 0.06
    # A sum of draws from [0, 1] and [0, 0.5], not one draw from [0, 1.5].
    assert noise.std() == pytest.approx(np.sqrt((1 + 0.25) / 12), rel=0.08)


@pytest.mark.parametrize("size", ["umaze", "medium", "large"])
def test_walls_are_those_of_gymnasium_robotics_maps(size: str) -> None:
    package = importlib.util.find_spec("gymnasium_robotics")
    if package is None or package.origin is None:
        pytest.skip("gymnasium-robotics is not installed")
    # Run, not imported: the package prints news and changes Gymnasium's registry.
    maps = runpy.run_path(str(Path(package.origin).parent / "envs" / "maze" / "maps.py"))
    expected = np.array(maps["U_MAZE" if size == "umaze" else f"{size.upper()}_MAZE"])
    layout = np.array([list(row) for row in antmaze.LAYOUTS[size].split()])
    assert np.array_equal(layout == "#", expected == 1)


def test_y_runs_with_the_rows_of_the_map(umaze: Any) -> None:
    model = umaze.model
    boxes = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    centres = {tuple(map(float, centre)) for centre in model.geom_pos[boxes][:, :2]}
    assert len(centres) == 18  # 25 cells, 7 of them free
    # From the start: a wall behind, one ahead in y, a way along x that turns to the goal.
    assert {(-4, 0), (0, -4), (0, 4), (4, 4), (12, 0)} <= centres
    assert not {(0, 0), (4, 0), (8, 0), (8, 4), (8, 8), (4, 8), (0, 8)} & centres
    assert (model.geom_size[boxes] == (2, 2, 1)).all()
    assert (model.geom_pos[boxes][:, 2] == 1).all()


@pytest.mark.parametrize(("axis", "passes"), [(0, True), (1, False)])
def test_walls_stop_the_ant(umaze: Any, axis: int, passes: bool) -> None:
    umaze.reset(seed=0)
    umaze.data.qvel[axis] = 15.0
    furthest = max(umaze.step(np.zeros(8))[0][axis] for _ in range(30))
    assert (furthest > 2.0) == passes


@pytest.mark.parametrize(("distance", "arrives"), [(0.499, True), (0.501, False)])
def test_the_goal_is_reached_within_half_a_metre(
    umaze: Any, distance: float, arrives: bool
) -> None:
    umaze.reset(seed=3)
    there = umaze.step(np.zeros(8))[0][:2]
    umaze.reset(seed=3)
    umaze.goal = there + distance * np.array([0.6, 0.8])
    _, reward, terminal, timeout, _ = umaze.step(np.zeros(8))
    assert (reward, terminal, timeout) == (float(arrives), arrives, False)


@pytest.mark.parametrize(
    ("maze", "steps"), [("umaze", 700), ("medium-play", 1000), ("large-play", 1000)]
)
def test_an_episode_ends_at_d4rls_limit(
    maze: antmaze.Maze, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(antmaze, "FRAME_SKIP", 1)  # a fifth of the time
    env = make_antmaze(maze)
    env.reset(seed=0)
    for step in range(1, steps + 1):
        _, reward, terminal, timeout, _ = env.step(np.zeros(8))
        assert (reward, terminal, timeout) == (0.0, False, step == steps)


def test_a_seed_repeats_an_episode_exactly() -> None:
    def episode(env: Any) -> np.ndarray:
        draw = np.random.default_rng(0)
        rows = [env.reset(seed=11)[0]]
        rows += [env.step(draw.uniform(-1, 1, 8))[0] for _ in range(30)]
        return np.array([*rows, np.resize(env.unwrapped.goal, 29)])

    env = make_antmaze("medium-diverse")
    first = episode(env)
    assert np.array_equal(episode(env), first)
    assert np.array_equal(episode(make_antmaze("medium-diverse")), first)
    assert not np.array_equal(env.reset(seed=12)[0], first[0])


def test_an_unknown_maze_is_refused_with_the_known_ones() -> None:
    unknown: Any = "medium"
    with pytest.raises(UserError, match="'medium'") as refused:
        make_antmaze(unknown)
    assert all(maze in str(refused.value) for maze in get_args(antmaze.Maze))
