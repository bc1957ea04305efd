"""Environments by the name of their task, or by a Gymnasium id."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

from acpo.errors import UserError
from acpo.tasks.table import AUTHORS, TASKS, suggestion

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
_SUITES = {name.split("/")[0] for name in TASKS}


def make(environment: str) -> gymnasium.Env:
    """The environment of a task's name, of NeoRL2's authors, or of a Gymnasium id.

    Raises:
        UserError: if the name begins like a task's, but is none.
    """
    name = TASKS[environment].environment if environment in TASKS else environment
    suite, _, task = name.partition("/")
    if name.startswith(AUTHORS):
        from acpo.tasks.neorl2.authors import authors_env

        return authors_env(task)
    if suite not in _SUITES:
        return gymnasium.make(name)
    if name not in TASKS:
        raise UserError(
            f"Environment {name!r} cannot be made: no task has that name. {suggestion(name)}"
        )
    if suite == "neorl2":
        module, maker = _NEORL2[task]
        return getattr(importlib.import_module(f"acpo.tasks.neorl2.{module}"), maker)()
    kind, _, rest = task.partition("-")
    variant: Any = rest.rpartition("-")[0]
    if kind == "antmaze":
        from acpo.tasks.antmaze import make_antmaze

        return make_antmaze(variant)
    from acpo.tasks.kitchen import make_kitchen

    return make_kitchen(variant)
