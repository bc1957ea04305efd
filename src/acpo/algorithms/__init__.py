"""Methods by name, and the paper's hyperparameter tables as presets."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

from acpo import cci
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.bc import BC
from acpo.behavior.gaussian import BehaviorConfig
from acpo.errors import UserError

# ACPO, AWAC, InAC and wBC are one algorithm with another rule for λ.
ALGORITHMS: dict[str, Any] = {
    "acpo": ACPO(),
    "awac": ACPO(rule=cci.fixed()),
    "inac": ACPO(rule=cci.fixed(0.0)),
    "wbc": ACPO(rule=cci.fixed(100.0)),
    "bc": BC(),
}

# The paper's ε by task (Tab-D4RL-Hyperparameters, Tab-NeoRL2-Hyperparameters).
PAPER_EPSILON = {
    "d4rl": {
        "hopper": -5.0,
        "halfcheetah": -0.2,
        "antmaze": -0.2,
        "walker2d": -0.7,
        "kitchen": -1.0,
    },
    "neorl2": {
        "simglucose": -5.0,
        "pipeline": -5.0,
        "safetyhalfcheetah": -10.0,
        "rocketrecovery": -10.0,
        "fusion": -10.0,
        "randomfrictionhopper": -2.0,
        "dmsd": -0.5,
    },
}
PAPER_ALPHA = {"d4rl": 0.1, "neorl2": 0.5}

PRESETS = (
    "default",
    *(f"paper-{suite}-{task}" for suite, t in PAPER_EPSILON.items() for task in t),
)


def make_algorithm(name: str = "acpo", preset: str = "default") -> Any:
    """An algorithm's configuration by name, as ours or as printed in the paper's tables.

    A preset named paper-SUITE-TASK (paper-d4rl-hopper, paper-neorl2-dmsd, …) takes the paper's
    numbers, and where the paper is silent the plainest choice: raw rewards and observations, plain
    heads, no layer normalisation.
    """
    algorithm = _choose("algorithm", name, ALGORITHMS)
    _choose("preset", preset, dict.fromkeys(PRESETS))
    if preset == "default":
        return algorithm
    _, suite, task = preset.split("-")
    behavior = BehaviorConfig(learning_rate=1e-4)
    algorithm = replace(
        algorithm,
        head="plain",
        normalize_observations=False,
        actor_average=1.0,
        behavior=behavior,
    )
    if isinstance(algorithm, BC):
        return algorithm
    # Fixed rules keep their λ; the dual one gets the paper's ε and a slack without bound.
    rule = replace(algorithm.rule, epsilon=PAPER_EPSILON[suite][task], slack_max=None)
    return replace(
        algorithm,
        alpha=PAPER_ALPHA[suite],
        rule=rule,
        tau=5e-3,
        layer_norm=False,
        reward_scale=1.0,
    )


def _choose(kind: str, name: str, table: dict[str, Any]) -> Any:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name.lower(), table, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"No {kind} is named {name!r}.{hint} There are {', '.join(table)}.")
