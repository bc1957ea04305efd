"""NeoRL2's DMSD: two masses between two walls, joined by three springs and dampers.

    m·v₁' = −(k₁ + k₂)·x₁ + k₂·x₂ − (c₁ + c₂)·v₁ + c₂·v₂ + F·a₁
    m·v₂' = k₂·x₁ − (k₂ + k₃)·x₂ + c₂·v₁ − (c₂ + c₃)·v₂ + F·a₂

with k = 2, c = 4, m = 20 throughout and F = 30, advanced by explicit Euler steps of Δt = 0.2. The
observation is (x₁, x₂, v₁, v₂, x₁*, x₂*): each mass has a target position, which may change once,
half-way through the episode. The reward is −Σⱼ log(|xⱼ − xⱼ*| + 0.01) after the step. Nothing is
random after the start, and episodes end at their horizon only.
"""

from __future__ import annotations

import numpy as np

from acpo.tasks.neorl2.batched import Batched, BatchedEnv

STIFFNESS, DAMPING, MASS = 2.0, 4.0, 20.0
FORCE = 30.0
STEP = 0.2
START_POSITION, START_VELOCITY, TARGET = 0.25, 0.1, 1.5
CLOSEST = 0.01


class DMSD(Batched):
    """N episodes: positions and velocities [N, 2], and a target per mass and step."""

    observation_dim, action_dim, horizon = 6, 2, 100

    def _start(self) -> np.ndarray:
        starts = [self._draw(generator) for generator in self._generators]
        positions, velocities, targets = (np.stack(part) for part in zip(*starts, strict=True))
        self._x, self._v, self._targets = positions, velocities, targets
        return self._observe()

    def _draw(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions [2], velocities [2] and targets [horizon, 2] of one episode."""
        first, second = generator.uniform(-TARGET, TARGET, (2, 2))
        changes = generator.random(2) < 0.5
        late = (np.arange(self.horizon) >= self.horizon // 2)[:, None]
        return (
            generator.uniform(-START_POSITION, START_POSITION, 2),
            generator.uniform(-START_VELOCITY, START_VELOCITY, 2),
            np.where(late & changes, second, first),
        )

    def restore(self, observations: np.ndarray) -> None:
        """Continue from observations [N, 6] as from a start, towards the targets seen in them."""
        self._begin(len(observations))
        self._x, self._v, now = np.split(observations.astype(np.float64), 3, axis=1)
        self._targets = np.repeat(now[:, None], self.horizon, axis=1)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, v = self._x, self._v
        # Each mass hangs on its wall and on the other mass.
        pull = STIFFNESS * (2.0 * x - x[:, ::-1]) + DAMPING * (2.0 * v - v[:, ::-1])
        self._x = x + STEP * v
        self._v = v + STEP / MASS * (FORCE * actions.astype(np.float64) - pull)
        observations = self._observe()
        # In single precision and from what is observed, as the published rewards are.
        errors = np.abs(observations[:, :2] - observations[:, 4:])
        rewards = -np.log(errors + np.float32(CLOSEST)).sum(axis=1)
        return observations, rewards, np.zeros(len(x), dtype=bool)

    def _observe(self) -> np.ndarray:
        now = self._targets[:, min(self._clock, self.horizon - 1)]
        return np.concatenate([self._x, self._v, now], axis=1).astype(np.float32)


class DMSDEnv(BatchedEnv):
    """DMSD as a Gymnasium environment."""

    def __init__(self) -> None:
        super().__init__(DMSD())
