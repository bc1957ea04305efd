"""NeoRL2's SafetyHalfCheetah: run forward, but never faster than a limit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

HORIZON = 1000
VELOCITY_LIMIT = 3.2096  # metres per second
PENALTY = -100.0
CONTROL_COST = 0.1
DT = 0.05  # seconds between actions: 5 steps of MuJoCo's 0.01


def reward(
    observations: np.ndarray, actions: np.ndarray, next_observations: np.ndarray
) -> np.ndarray:
    """r = v − 0.1 ‖a‖² with v = (x' − x) / 0.05, and r = −100 where v > 3.2096.

    Takes one row or many. The x position is an observation's first number.
    """
    velocity = (next_observations[..., 0] - observations[..., 0]) / DT
    effort = CONTROL_COST * np.sum(np.square(actions), axis=-1)
    return np.where(velocity > VELOCITY_LIMIT, PENALTY, velocity - effort)


class SafetyHalfCheetahEnv(gymnasium.Env):
    """Gymnasium's half-cheetah with the x position observed and a penalty on speed.

    An observation is the simulator's whole state: 9 positions (x first) and 9 velocities. It
    begins at U(−0.1, 0.1) and N(0, 0.1²). Too fast a step costs its reward, but no episode ends
    before its 1000 steps are over: the authors publish a rule that would end it there, and do not
    apply it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 — Gymnasium declares it on the instance

    def __init__(self) -> None:
        # Only the state comes from here: v5 and v4 share it, its model and its first draws.
        self.simulator = HalfCheetahEnv(exclude_current_positions_from_observation=False)
        finite = np.finfo(np.float64).max
        self.observation_space = gymnasium.spaces.Box(-finite, finite, (18,), np.float64)
        self.action_space = self.simulator.action_space
        self._clock = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; the seed of a recorded one gives its first observation."""
        super().reset(seed=seed)
        self._clock = 0
        observation, _ = self.simulator.reset(seed=seed)
        return observation, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply torques in [−1, 1] for 0.05 seconds."""
        before = self.simulator.state_vector()
        self._clock += 1
        observation, _, _, _, info = self.simulator.step(action)
        return (
            observation,
            float(reward(before, action, observation)),
            False,
            self._clock >= HORIZON,
            {"x_velocity": info["x_velocity"]},
        )

    def close(self) -> None:
        """Let the simulator go."""
        self.simulator.close()
