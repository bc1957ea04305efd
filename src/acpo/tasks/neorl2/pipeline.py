"""NeoRL2's Pipeline: a gate lets water into a pipe that carries it out twenty steps later.

The action changes the gate's flow, gₜ = clip(gₜ₋₁ + aₜ, 0, 200), and what flows out is
fₜ = gₜ₋₁₉: the water passes a pipe of length 100 at speed 5. The wanted flow f* is one of
50, 80, 110 and 140; with probability 0.003 per step it is drawn anew. The reward is
(0.01·(200 − |fₜ − fₜ*|))² − 3. Flow starts equal along the pipe, uniform over [80, 120].

The observation is (fₜ, fₜ*, fₜ₋₁ … fₜ₋₂₅, aₜ … aₜ₋₂₄). It is complete: the last nineteen actions
and the outflow give all the water in the pipe. Episodes end at their horizon only.

Here the first wanted flow is always drawn. The published environment carries it over from its
previous episode, whatever the seed.
"""

from __future__ import annotations

import numpy as np

from acpo.tasks.neorl2.batched import Batched, BatchedEnv

DELAY = 20
MEMORY = 25
LARGEST_FLOW = 200.0
START = (80.0, 120.0)
WANTED = (50.0, 80.0, 110.0, 140.0)
CHANGE = 0.003


class Pipeline(Batched):
    """N episodes: the water in the pipe [N, 20], newest first, and the observation itself."""

    observation_dim, action_dim, horizon = 2 + 2 * MEMORY, 1, 1000
    observation_low = np.repeat([0.0, -1.0], [2 + MEMORY, MEMORY])
    observation_high = np.repeat([LARGEST_FLOW, 1.0], [2 + MEMORY, MEMORY])

    def _start(self) -> np.ndarray:
        # The published environment's draws in its order: a seed gives the same flows.
        flows = np.array([generator.uniform(*START) for generator in self._generators])
        self._wanted = np.stack([self._draw(generator) for generator in self._generators])
        self._pipe = np.repeat(flows[:, None], DELAY, axis=1).astype(np.float32)
        self._seen = np.zeros((len(flows), self.observation_dim), dtype=np.float32)
        self._seen[:, : 2 + MEMORY] = flows[:, None]
        self._seen[:, 1] = self._wanted[:, 0]
        return self._seen

    def _draw(self, generator: np.random.Generator) -> np.ndarray:
        """The wanted flow at every time of one episode, [horizon + 1]."""
        generator.random()  # decides nothing: there is no flow yet to keep
        wanted = [generator.choice(WANTED)]
        for _ in range(self.horizon):
            change = generator.random() < CHANGE
            wanted.append(generator.choice(WANTED) if change else wanted[-1])
        return np.array(wanted, dtype=np.float32)

    def restore(self, observations: np.ndarray) -> None:
        """Continue from observations [N, 52] as from a start; the wanted flow stays."""
        self._begin(len(observations))
        self._seen = observations.astype(np.float32)
        self._wanted = np.repeat(self._seen[:, 1:2], self.horizon + 1, axis=1)
        self._pipe = np.repeat(self._seen[:, :1], DELAY, axis=1)
        latest = 2 + MEMORY
        for age in range(DELAY - 2, -1, -1):
            self._pipe[:, age] = self._gate(self._pipe[:, age + 1], self._seen[:, latest + age])

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seen, latest = self._seen, 2 + MEMORY
        gate = self._gate(self._pipe[:, :1], actions)
        self._pipe = np.concatenate([gate, self._pipe[:, :-1]], axis=1)
        out, wanted = self._pipe[:, -1], self._wanted[:, self._clock]
        self._seen = np.concatenate(
            [
                out[:, None],
                wanted[:, None],
                seen[:, :1],
                seen[:, 2 : latest - 1],
                actions,
                seen[:, latest:-1],
            ],
            axis=1,
        )
        rewards = np.square((200 - np.abs(out - wanted)) * 0.01) - 3
        return self._seen, rewards, np.zeros(len(out), dtype=bool)

    @staticmethod
    def _gate(flow: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.clip(flow + action, 0.0, LARGEST_FLOW)


class PipelineEnv(BatchedEnv):
    """Pipeline as a Gymnasium environment."""

    def __init__(self) -> None:
        super().__init__(Pipeline())
