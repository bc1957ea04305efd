"""Methods by name, and their settings: ours, the paper's, or those of a method's authors."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any, NamedTuple

from acpo import cci
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.base import About
from acpo.algorithms.bc import BC
from acpo.algorithms.bcq import BCQ
from acpo.algorithms.cql import CQL
from acpo.algorithms.dtql import DTQL
from acpo.algorithms.edac import EDAC
from acpo.algorithms.eql import EQL
from acpo.algorithms.iql import IQL
from acpo.algorithms.mcq import MCQ
from acpo.algorithms.spot import SPOT
from acpo.algorithms.swg import SWG
from acpo.algorithms.td3_bc import TD3BC
from acpo.behavior.config import BehaviorConfig
from acpo.errors import UserError
from acpo.tasks import PRESETS, TASKS, Preset, find_task

# ACPO, AWAC, InAC and wBC are one algorithm with another rule for λ.
ALGORITHMS: dict[str, Any] = {
    "acpo": ACPO(),
    "awac": ACPO(rule=cci.fixed()),
    "inac": ACPO(rule=cci.fixed(0.0)),
    "wbc": ACPO(rule=cci.fixed(100.0)),
    "bc": BC(),
    "td3_bc": TD3BC(),
    "iql": IQL(),
    "eql": EQL(),
    "spot": SPOT(),
    "bcq": BCQ(),
    "cql": CQL(),
    "mcq": MCQ(),
    "edac": EDAC(),
    "dtql": DTQL(),
    "swg": SWG(),
}
SUITES = ("mujoco", "antmaze", "kitchen", "neorl2")
_FIXED = {
    "awac": (
        "Accelerating Online RL with Offline Datasets (Nair et al.)",
        2020,
        "density",
        "λ = α",
    ),
    "inac": ("The In-Sample Softmax for Offline RL (Xiao et al.)", 2023, "support", "λ = 0"),
    "wbc": ("weighted behaviour cloning, the far end of the axis", 2026, "weighted BC", "λ = 100"),
}


def about(name: str) -> About:
    """A method in one line."""
    found: About = ALGORITHMS[name].about
    if name not in _FIXED:
        return found
    paper, year, family, lam = _FIXED[name]
    return found._replace(
        paper=paper,
        year=year,
        family=family,
        constrains=f"πθ to πβ by a fixed {lam}",
        source="all but λ as ACPO",
    )


def find_preset(preset: str, dataset: str | None = None) -> Preset | None:
    """The paper's settings that are meant: those named, or else those of the dataset's task.

    Args:
        preset: "default", "paper", or a row of the paper's tables, such as "paper-d4rl-hopper".
        dataset: What is trained on; tasks of one row may be joined by "+".

    Returns:
        None by default for data that belongs to no task.

    Raises:
        UserError: if there is no such preset, or "paper" is asked for without a task.
    """
    if preset not in ("default", "paper"):
        return _choose("preset of ACPO and BC", preset, {"default": None, "paper": None, **PRESETS})
    tasks = [find_task(part) for part in (dataset or "").split("+")]
    found = {task.preset if task else None for task in tasks}
    row = found.pop() if len(found) == 1 else None
    if row is None and preset == "paper":
        known = f"{dataset!r} is not one" if dataset else "none is named"
        raise UserError(
            "The preset 'paper' takes the paper's numbers for a task by its name (acpo tasks), "
            f"and {known}. For other data name a row of its tables: {', '.join(PRESETS)}."
        )
    return row


class Choice(NamedTuple):
    """A method with its settings, and what a task sets beside them."""

    algorithm: Any
    relabel: str | None = None
    """Reward to train on."""
    episodes: int | None = None
    """Episodes per evaluation."""
    note: str | None = None
    """What the user should know of the settings."""


def choose(name: str = "acpo", preset: str = "default", dataset: str | None = None) -> Choice:
    """A method by name, set as `preset` says for the data that `dataset` names.

    ACPO, its special cases and BC: ours by default; the paper's for the task with "paper", and
    those of paper-SUITE-TASK (paper-d4rl-hopper, …) for any data. Where the paper is silent they
    take the plainest choice: raw rewards and observations, plain heads, no layer normalisation.
    Any other method: its authors', for the task or its suite; "mujoco" where there is no task, and
    those of another suite or task by its name.
    """
    algorithm = _choose("algorithm", name, ALGORITHMS)
    if not isinstance(algorithm, ACPO | BC):
        return _as_its_authors(algorithm, preset, dataset)
    row = find_preset(preset, dataset)
    if row is None:
        return Choice(algorithm)
    if preset != "default":
        algorithm = _as_the_paper(algorithm, row)
    return Choice(algorithm, row.relabel, row.episodes)


def make_algorithm(name: str = "acpo", preset: str = "default", dataset: str | None = None) -> Any:
    """An algorithm's configuration by name; see `choose`."""
    return choose(name, preset, dataset).algorithm


def _as_the_paper(algorithm: Any, row: Preset) -> Any:
    algorithm = replace(
        algorithm,
        head="plain",
        normalize_observations=row.normalize_observations,
        actor_average=0.0,
        behavior=BehaviorConfig(learning_rate=1e-4),
    )
    if isinstance(algorithm, BC):
        return algorithm
    # Fixed rules keep their λ; the dual one gets the paper's ε, and moves from the first step on.
    rule = replace(algorithm.rule, epsilon=row.epsilon, lam_waits=False, slack_steps=1)
    return replace(
        algorithm,
        alpha=row.alpha,
        rule=rule,
        tau=5e-3,
        layer_norm=False,
        reward_scale=1.0,
        value_start=0.0,
        entropy_price=1.0,
        advantage_spread_max=None,
        weight_spread=None,
        normalize_weights=False,
        cloning_share=0.0,
    )


def _as_its_authors(algorithm: Any, preset: str, dataset: str | None) -> Choice:
    tasks = {task.name.partition("/")[2]: task for task in TASKS.values()}
    row = find_preset("default", dataset)
    asked = {task.name: short for short, task in tasks.items()}.get(preset, preset)
    if preset == "default":
        parts = [find_task(part) for part in (dataset or "").split("+")]
        found = {task.name.partition("/")[2] if task else "mujoco" for task in parts}
        asked = found.pop() if len(found) == 1 else "mujoco"
    else:
        known = dict.fromkeys(["default", *SUITES, *tasks])
        _choose(f"preset of {type(algorithm).__name__}", asked, known)
    suite = tasks[asked].suite if asked in tasks else asked
    fields: dict[str, Any] = {}
    for place in dict.fromkeys((suite, asked)):
        fields |= algorithm.settings.get(place, {})
    relabel = fields.pop("relabel", None)
    note = None
    if suite != "mujoco" and not {suite, asked} & algorithm.settings.keys():
        note = f"no settings for {asked} were found: those for Gym-MuJoCo"
    return Choice(replace(algorithm, **fields), relabel, row.episodes if row else None, note)


def _choose(kind: str, name: str, table: dict[str, Any]) -> Any:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name.lower(), table, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"No {kind} is named {name!r}.{hint} There are {', '.join(table)}.")
