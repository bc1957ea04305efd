"""AntMaze as D4RL's v2 tasks define it, built on Gymnasium's ant.

gymnasium-robotics' AntMaze, on the same ant, has a frame of its own: an observation in parts, the
origin in the maze's middle, y mirrored, half the time step, stronger motors, and a smaller goal
that does not end the episode. A policy learnt from D4RL's data needs D4RL's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium
import mujoco
import numpy as np
from gymnasium.wrappers import TimeLimit

from acpo.errors import UserError

Maze = Literal[
    "umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse"
]

# Walls, start and goal by the maze's size; what follows the size in a task's name tells datasets
# apart, not environments.
LAYOUTS = {
    "umaze": """
        #####
        #S..#
        ###.#
        #G..#
        #####
    """,
    "medium": """
        ########
        #S.##..#
        #..#...#
        ##...###
        #..#...#
        #.#..#.#
        #...#.G#
        ########
    """,
    "large": """
        ############
        #S...#.....#
        #.##.#.#.#.#
        #......#...#
        #.####.###.#
        #..#.#.....#
        ##.#.#.#.###
        #..#...#.G.#
        ############
    """,
}
STEPS = {"umaze": 700, "medium": 1000, "large": 1000}

CELL = 4.0  # m
WALL_HEIGHT = 2.0  # m
SUCCESS_RADIUS = 0.5  # m
TORQUE = 30.0  # N·m, for an action of 1
TIMESTEP = 0.02  # s
FRAME_SKIP = 5

# D4RL displaces each coordinate of the goal twice, by at most a quarter and an eighth of a cell,
# always away from the start.
GOAL_NOISE = (CELL / 4, CELL / 8)
START_NOISE = 0.1  # half-width for the position, deviation for the velocity


def make_antmaze(maze: Maze) -> gymnasium.Env:
    """D4RL's antmaze-`maze`-v2."""
    if maze not in get_args(Maze):
        raise UserError(f"There is no AntMaze {maze!r}; there are {', '.join(get_args(Maze))}.")
    size = maze.split("-")[0]
    return TimeLimit(AntMazeEnv(LAYOUTS[size]), max_episode_steps=STEPS[size])


class AntMazeEnv(gymnasium.Env):
    """An ant walks to a goal that it does not see: reward 1 there, and the episode ends.

    Observation [29]: the position (15 numbers: x, y, height, quaternion, 8 joints), of which x and
    y are relative to the middle of the start's cell, and the velocity (14). Action [8]: torques as
    parts of what the motors can do, in [−1, 1].
    """

    def __init__(self, layout: str) -> None:
        rows = np.array([list(row) for row in layout.split()])
        start = np.argwhere(rows == "S")[0]

        def centres(mark: str) -> np.ndarray:
            """x and y [n, 2] of the cells so marked: x runs with the columns, y with the rows."""
            return CELL * (np.argwhere(rows == mark) - start)[:, ::-1]

        self.model = _ant_among(centres("#"))
        self.data = mujoco.MjData(self.model)
        self._goal_cell = centres("G")[0]
        self.goal = self._goal_cell
        observation, finite = (self.model.nq + self.model.nv,), np.finfo(np.float64).max
        self.observation_space = gymnasium.spaces.Box(-finite, finite, observation, np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.model.nu,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a goal, as v2 does for every episode, and a state near rest at the origin."""
        super().reset(seed=seed)
        draw = self.np_random
        self.goal = self._goal_cell + sum(draw.uniform(0.0, most, 2) for most in GOAL_NOISE)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos += draw.uniform(-START_NOISE, START_NOISE, self.model.nq)
        self.data.qvel += START_NOISE * draw.standard_normal(self.model.nv)
        # MuJoCo 2 did so itself. MuJoCo 3 leaves the quaternion as it is until the first step, an
        # observation that is not in D4RL's data.
        mujoco.mj_normalizeQuat(self.model, self.data.qpos)
        mujoco.mj_forward(self.model, self.data)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold the torques for 0.1 s."""
        self.data.ctrl[:] = TORQUE * np.clip(action, -1.0, 1.0)
        mujoco.mj_step(self.model, self.data, FRAME_SKIP)
        arrived = bool(np.linalg.norm(self.data.qpos[:2] - self.goal) <= SUCCESS_RADIUS)
        return self._observation(), float(arrived), arrived, False, {}

    def _observation(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])


def _ant_among(walls: np.ndarray) -> mujoco.MjModel:
    """Gymnasium's ant, tuned as D4RL's, among walls of one cell with these centres [n, 2]."""
    file = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"
    spec = mujoco.MjSpec.from_file(str(file))
    spec.option.timestep = TIMESTEP
    for motor in spec.actuators:
        motor.gear[0] = 1.0
        motor.ctrlrange = (-TORQUE, TORQUE)
    for x, y in walls:
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=(x, y, WALL_HEIGHT / 2),
            size=(CELL / 2, CELL / 2, WALL_HEIGHT / 2),
            conaffinity=1,  # the file's default keeps the ant's parts from colliding, walls too
        )
    for geom in spec.geoms:
        geom.solimp[:3] = (0.8, 0.8, 0.01)  # softer contacts than Gymnasium's
    # A contact's margin is the larger of its two geoms' up to MuJoCo 3.4, as in D4RL's, and their
    # sum since 3.5. The ant's are 0.01; where floor and walls have none, both rules agree.
    for geom in spec.worldbody.geoms:
        geom.margin = 0.0
    return spec.compile()
