"""Tasks: an environment and the reference scores that normalise its returns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from acpo.errors import UserError

if TYPE_CHECKING:
    import gymnasium


class Reference(NamedTuple):
    """Returns that count as 0 and as 100."""

    minimum: float
    maximum: float

    def score(self, episode_return: Any) -> Any:
        """100 · (R − min) / (max − min)."""
        return 100.0 * (episode_return - self.minimum) / (self.maximum - self.minimum)


# By Gymnasium id, or by what a dataset's name begins with. D4RL's are for gymnasium's v4 tasks,
# whose rewards match its own.
REFERENCES = {
    "Hopper-v4": Reference(-20.272305, 3234.3),
    "HalfCheetah-v4": Reference(-280.178953, 12135.0),
    "Walker2d-v4": Reference(1.629008, 4592.3),
    "d4rl/antmaze": Reference(0.0, 1.0),
    "d4rl/kitchen": Reference(0.0, 4.0),
    "neorl2/Pipeline": Reference(-296, 751),
    "neorl2/Simglucose": Reference(9.75, 475),
    "neorl2/RocketRecovery": Reference(-176, 208),
    "neorl2/RandomFrictionHopper": Reference(-3, 503),
    "neorl2/DMSD": Reference(30.60, 849.51),
    "neorl2/Fusion": Reference(-107.601, 98.05),
    "neorl2/SafetyHalfCheetah": Reference(-283, 2507),
}


def reference(environment: str | None, dataset: str = "") -> Reference | None:
    """The reference returns of an environment, or else those of a dataset by name."""
    for name in (environment or "", dataset):
        for key, found in REFERENCES.items():
            if name.startswith(key):
                return found
    return None


# Mean return of behaviour cloning, by the fingerprint of the dataset it was measured on.
BEHAVIOR_CLONING: dict[str, float] = {
    # builtin/hopper-replay: `acpo train --algorithm bc --seeds 5 --steps 30000 --episodes 20`,
    # last checkpoint, deviation over seeds 4.
    "d5d530a8510d9a29": 192.0,
}


def make_env(environment: str) -> gymnasium.Env:
    """The environment of a task ("neorl2/DMSD", "d4rl/kitchen-mixed-v0") or of a Gymnasium id.

    Observations and actions are flat and continuous.
    """
    import gymnasium

    from acpo.tasks import environments

    try:
        with warnings.catch_warnings():
            # v4 is chosen on purpose (see REFERENCES); the advice to move to v5 would mislead.
            warnings.simplefilter("ignore")
            env = environments.make(environment) or gymnasium.make(environment)
    except gymnasium.error.Error as error:
        raise UserError(f"Environment {environment!r} cannot be made: {error}") from error
    for what, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise UserError(
                f"Environment {environment!r} has {what} space {space}; "
                "only flat continuous (Box) spaces are supported."
            )
    return env


def dimensions(env: gymnasium.Env) -> tuple[int, int]:
    """Numbers in an observation and in an action."""
    spaces: Any = (env.observation_space, env.action_space)
    return spaces[0].shape[0], spaces[1].shape[0]
