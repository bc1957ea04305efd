"""Tasks by name: environments, and the reference scores that normalise their returns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from acpo.errors import UserError
from acpo.tasks.table import (
    AUTHORS,
    PRESETS,
    TASKS,
    Preset,
    Reference,
    Task,
    find_task,
    reference,
    suggestion,
)

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "AUTHORS",
    "BEHAVIOR_CLONING",
    "PRESETS",
    "TASKS",
    "Preset",
    "Reference",
    "Task",
    "dimensions",
    "find_task",
    "make_env",
    "reference",
    "suggestion",
]

# Mean return of behaviour cloning, by the fingerprint of the dataset it was measured on.
BEHAVIOR_CLONING: dict[str, float] = {
    # builtin/hopper-replay: `acpo train --algorithm bc --seeds 5 --steps 30000 --episodes 20`,
    # last checkpoint, deviation over seeds 4.
    "d5d530a8510d9a29": 192.0,
}


def make_env(environment: str) -> gymnasium.Env:
    """The environment of a task ("neorl2/DMSD", "d4rl/hopper-medium-v2") or of a Gymnasium id.

    "neorl2-authors/DMSD" is the one of NeoRL2's authors, where their source is importable.
    Observations and actions are flat and continuous.
    """
    import gymnasium

    from acpo.tasks import environments

    try:
        with warnings.catch_warnings():
            # v4 is chosen on purpose (see the table); the advice to move to v5 would mislead.
            warnings.simplefilter("ignore")
            env = environments.make(environment)
    except (gymnasium.error.Error, ImportError) as error:
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
