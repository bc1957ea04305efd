"""Methods by name, and the paper's hyperparameter tables as presets."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

from acpo import cci
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.bc import BC
from acpo.behavior.config import BehaviorConfig
from acpo.errors import UserError
from acpo.tasks import PRESETS, Preset, find_task

# ACPO, AWAC, InAC and wBC are one algorithm with another rule for λ.
ALGORITHMS: dict[str, Any] = {
    "acpo": ACPO(),
    "awac": ACPO(rule=cci.fixed()),
    "inac": ACPO(rule=cci.fixed(0.0)),
    "wbc": ACPO(rule=cci.fixed(100.0)),
    "bc": BC(),
}


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
        return _choose("preset", preset, {"default": None, "paper": None, **PRESETS})
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


def make_algorithm(name: str = "acpo", preset: str = "default", dataset: str | None = None) -> Any:
    """An algorithm's configuration by name, as ours or as printed in the paper's tables.

    The preset "paper" takes the paper's numbers for the task that `dataset` names, and
    paper-SUITE-TASK (paper-d4rl-hopper, paper-neorl2-dmsd, …) those for any data. Where the paper
    is silent they take the plainest choice: raw rewards and observations, plain heads, no layer
    normalisation.
    """
    algorithm = _choose("algorithm", name, ALGORITHMS)
    row = find_preset(preset, dataset)
    if preset == "default" or row is None:
        return algorithm
    algorithm = replace(
        algorithm,
        head="plain",
        normalize_observations=row.normalize_observations,
        actor_average=1.0,
        behavior=BehaviorConfig(learning_rate=1e-4),
    )
    if isinstance(algorithm, BC):
        return algorithm
    # Fixed rules keep their λ; the dual one gets the paper's ε and a slack without bound.
    rule = replace(algorithm.rule, epsilon=row.epsilon, slack_max=None)
    return replace(
        algorithm, alpha=row.alpha, rule=rule, tau=5e-3, layer_norm=False, reward_scale=1.0
    )


def _choose(kind: str, name: str, table: dict[str, Any]) -> Any:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name.lower(), table, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"No {kind} is named {name!r}.{hint} There are {', '.join(table)}.")
