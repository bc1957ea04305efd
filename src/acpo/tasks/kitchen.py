"""Kitchen as D4RL defines it, in the kitchen of gymnasium-robotics' FrankaKitchen-v1.

The model there is D4RL's but for the robot's pedestal. FrankaKitchen around it differs in the
observation, in the noise (a tenth of D4RL's on the robot) and in rewards blind to noise.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium
import mujoco
import numpy as np
from gymnasium.wrappers import TimeLimit

from acpo.errors import UserError

Kind = Literal["complete", "partial", "mixed"]

# What each task asks for: place in the observation, and value there.
GOALS = {
    "microwave": {22: -0.75},
    "kettle": {23: -0.23, 24: 0.75, 25: 1.62, 26: 0.99, 27: 0.0, 28: 0.0, 29: -0.06},
    "bottom burner": {11: -0.88, 12: -0.01},
    "light switch": {17: -0.69, 18: -0.05},
    "slide cabinet": {19: 0.37},
}
# Complete and partial are one environment with two datasets.
TASKS: dict[str, tuple[str, ...]] = {
    "complete": ("microwave", "kettle", "light switch", "slide cabinet"),
    "partial": ("microwave", "kettle", "light switch", "slide cabinet"),
    "mixed": ("microwave", "kettle", "bottom burner", "light switch"),
}
RADIUS = 0.3  # a task nearer than this to its goal is complete
STEPS = 280

ROBOT = 9  # joints, before those of the objects
MAX_SPEED = 2.0  # rad/s (fingers: m/s), for an action of 1
FRAME_SKIP = 40
TARGET_LOW = np.array([-2.9, -1.8, -2.9, -3.1, -2.9, 0.0, -2.9, 0.0, 0.0])
TARGET_HIGH = np.array([2.9, 1.8, 2.9, 0.0, 2.9, 3.8, 2.9, 0.04, 0.04])

# Half-widths of the uniform noise on a reading: a tenth of the amplitudes that D4RL's
# configuration of the robot lists.
NOISE = 0.1 * np.repeat(
    [0.1, 0.005, 0.0005, 0.005, 0.1, 0.005, 0.1, 0.005], [ROBOT, 2, 6, 3, 3, 3, 3, 1]
)

# Every episode begins here.
START = np.concatenate(
    [
        [0.148388023, -1.76848573, 1.84390296, -2.4768576, 0.260252026, 0.712533105, 1.59515394],
        [0.0479267505, 0.0371350919],  # fingers
        [-2.6627985e-4, -5.18043486e-5, 3.1287722e-5, -4.51199853e-5],  # knobs and burners
        [-3.90842156e-6, -4.22629655e-5, 6.28065475e-5, 4.04984708e-5],
        [4.62730939e-4, -2.26906415e-4],  # light
        [-4.65501369e-4, -6.44129196e-3, -1.77048263e-3, 1.08009684e-3],  # cabinets, microwave
        [-0.26939744, 0.350383255, 1.61944683],  # kettle
        [1.00618764, 4.0639512e-3, -6.62095997e-3, -2.68278933e-4],
    ]
)


def make_kitchen(kind: Kind) -> gymnasium.Env:
    """D4RL's kitchen-`kind`-v0."""
    if kind not in TASKS:
        raise UserError(f"There is no Kitchen {kind!r}; there are {', '.join(get_args(Kind))}.")
    return TimeLimit(KitchenEnv(TASKS[kind]), max_episode_steps=STEPS)


class KitchenEnv(gymnasium.Env):
    """A robot arm does four tasks in any order: reward 1 for each when it is first complete.

    So a return counts the tasks done, at most four, and the last ends the episode. The rewards in
    D4RL's datasets are others: the number of tasks that are complete at each step.

    Observation [60]: 9 joints of the robot and 21 numbers for the objects, read with noise, then
    the goal [30] for these, 0 where there is none. Action [9]: velocities of the robot's joints as
    parts of 2 rad/s, in [−1, 1].
    """

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.model = _model()
        self.data = mujoco.MjData(self.model)
        self.tasks = tasks
        self._left = set(tasks)
        self._goal = np.zeros(self.model.nq)
        for task in tasks:
            self._goal[list(GOALS[task])] = list(GOALS[task].values())
        self.reading = START
        self.observation_space = gymnasium.spaces.Box(-8.0, 8.0, (2 * self.model.nq,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (ROBOT,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return to the one start; only how it is read differs from episode to episode."""
        super().reset(seed=seed)
        self._left = set(self.tasks)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = START
        mujoco.mj_forward(self.model, self.data)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move for 0.08 s."""
        velocity = MAX_SPEED * np.clip(action, -1.0, 1.0)
        seconds = FRAME_SKIP * self.model.opt.timestep
        # D4RL's controller turns a velocity into a position to hold. It starts from the last
        # reading, not from the joints, so that the reading's noise moves the robot.
        target = self.reading[:ROBOT] + velocity * seconds
        self.data.ctrl[:] = np.clip(target, TARGET_LOW, TARGET_HIGH)
        mujoco.mj_step(self.model, self.data, FRAME_SKIP)
        observation = self._observation()
        done = {task for task in self._left if is_complete(task, observation)}
        self._left -= done
        return observation, float(len(done)), not self._left, False, {}

    def _observation(self) -> np.ndarray:
        self.reading = self.data.qpos + self.np_random.uniform(-NOISE, NOISE)
        return np.concatenate([self.reading, self._goal])


def is_complete(task: str, observation: np.ndarray) -> bool:
    """Whether an observation shows a task's objects within 0.3 of their goal."""
    goal = GOALS[task]
    return bool(np.linalg.norm(observation[list(goal)] - list(goal.values())) < RADIUS)


@functools.cache
def _model() -> mujoco.MjModel:
    """The compiled kitchen. Its meshes take a second and 60 MB, so all environments share it."""
    # Found, not imported: the import changes Gymnasium's registry and prints news.
    package = importlib.util.find_spec("gymnasium_robotics")
    if package is None or package.origin is None:
        raise UserError("Kitchen needs gymnasium-robotics: pip install 'acpo[robotics]'.")
    assets = Path(package.origin).parent / "envs" / "assets" / "kitchen_franka"
    model = mujoco.MjModel.from_xml_path(str(assets / "kitchen_assets" / "kitchen_env_model.xml"))
    # In D4RL's model the pedestal is only for show: nothing collides with it.
    pedestal = model.geom_bodyid == model.body("panda0_link0").parentid[0]
    model.geom_contype[pedestal] = model.geom_conaffinity[pedestal] = 0
    return model
