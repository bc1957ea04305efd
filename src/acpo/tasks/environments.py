"""Environments of the paper's tasks that Gymnasium does not have, by the name of their task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

# Imported when wanted: a task must not wait for the packages of another.
_NEORL2 = {
    "DMSD": ("dmsd", "DMSDEnv"),
    "Fusion": ("fusion", "make_fusion"),
    "Pipeline": ("pipeline", "PipelineEnv"),
    "RandomFrictionHopper": ("random_friction_hopper", "RandomFrictionHopperEnv"),
    "RocketRecovery": ("rocket_recovery", "RocketRecoveryEnv"),
    "SafetyHalfCheetah": ("safety_halfcheetah", "SafetyHalfCheetahEnv"),
    "Simglucose": ("simglucose", "SimglucoseEnv"),
}


def make(task: str) -> gymnasium.Env | None:
    """The environment of "neorl2/DMSD", "d4rl/antmaze-umaze-v2", …; None for any other name."""
    suite, _, name = task.partition("/")
    if suite == "neorl2" and name in _NEORL2:
        module, maker = _NEORL2[name]
        return getattr(importlib.import_module(f"acpo.tasks.neorl2.{module}"), maker)()
    if suite != "d4rl":
        return None
    kind, _, rest = name.partition("-")
    variant: Any = rest.rpartition("-")[0]
    if kind == "antmaze":
        from acpo.tasks.antmaze import make_antmaze

        return make_antmaze(variant)
    if kind == "kitchen":
        from acpo.tasks.kitchen import make_kitchen

        return make_kitchen(variant)
    return None
