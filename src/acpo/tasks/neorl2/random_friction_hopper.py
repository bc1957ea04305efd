"""NeoRL2's RandomFrictionHopper: hop forward on a foot whose grip differs between episodes."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

HORIZON = 1000
FRICTION = (1.5, 2.5)
CONTROL_COST = 1e-3
DT = 0.008  # seconds between actions: 4 steps of MuJoCo's 0.002


def reward(
    observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray
) -> np.ndarray:
    """r = (x' − x) / 0.008 − 0.001 ‖a‖²; unlike Hopper's, none for being alive.

    Takes one row or many. The x position is an observation's first number.
    """
    velocity = (next_observations[..., 0] - observations[..., 0]) / DT
    return velocity - CONTROL_COST * np.sum(np.square(actions), axis=-1)


def terminal(next_observations: np.ndarray) -> np.ndarray:
    """Fallen: not (z > 0.7 and |angle| < 0.2 and every other number within ±100).

    The other numbers are the observed ones: velocities are cut at ±10 there, so that, unlike in
    Hopper, a fast joint alone ends nothing.
    """
    z, angle = next_observations[..., 1], next_observations[..., 2]
    bounded = np.all(np.abs(next_observations[..., 3:]) < 100.0, axis=-1)
    return ~((z > 0.7) & (np.abs(angle) < 0.2) & bounded)


class RandomFrictionHopperEnv(gymnasium.Env):
    """Gymnasium's hopper with the friction of its foot drawn anew in every episode.

    An observation has 6 positions (x first), 6 velocities cut to [−10, 10], and the friction
    φ ~ U(1.5, 2.5) of the episode; the simulator uses φ rounded to two decimals.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 — Gymnasium declares it on the instance

    def __init__(self) -> None:
        # Only the state comes from here: v5 and v4 share it, its model and its first draws.
        self.simulator = HopperEnv(exclude_current_positions_from_observation=False)
        # MuJoCo takes a contact's margin from its two geoms: the larger one up to 3.4, their sum
        # since 3.5. The data are from the former. Where the floor has none, both agree.
        self.simulator.model.geom("floor").margin[0] = 0.0
        finite = np.finfo(np.float64).max
        self.observation_space = gymnasium.spaces.Box(-finite, finite, (13,), np.float64)
        self.action_space = self.simulator.action_space
        self._clock = 0
        self._friction = 2.0
        # The authors draw from Python's global generator. One of the same kind of our own gives a
        # seed the friction that the data have for it.
        self._frictions = random.Random()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; the seed of a recorded one gives its first observation."""
        super().reset(seed=seed)
        if seed is not None:
            self._frictions.seed(seed)
        self._friction = self._frictions.uniform(*FRICTION)
        self.simulator.model.geom("foot_geom").friction[0] = round(self._friction, 2)
        self._clock = 0
        observation, _ = self.simulator.reset(seed=seed)
        return np.append(observation, self._friction), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply torques in [−1, 1] for 0.008 seconds."""
        before = self.simulator.state_vector()
        self._clock += 1
        observation, _, _, _, info = self.simulator.step(action)
        fallen = bool(terminal(observation))
        return (
            np.append(observation, self._friction),
            float(reward(before, action, observation)),
            fallen,
            self._clock >= HORIZON and not fallen,
            {"x_velocity": info["x_velocity"]},
        )

    def close(self) -> None:
        """Let the simulator go."""
        self.simulator.close()
