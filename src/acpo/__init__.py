"""acpo: offline reinforcement learning with a constraint dial that turns itself.

>>> import acpo
>>> data = acpo.load_dataset("builtin/hopper-replay")
>>> run = acpo.train(data, acpo.ACPO(), steps=20_000)
>>> action = run.policy(data.observations[0])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acpo.algorithms import make_algorithm
    from acpo.algorithms.acpo import ACPO
    from acpo.algorithms.bc import BC
    from acpo.cci import dual, fixed
    from acpo.data import Dataset, load_dataset
    from acpo.errors import UserError
    from acpo.policy import Policy, load_policy
    from acpo.tasks import make_env
    from acpo.training.loop import Run, train

# Imported on first use: `import acpo` and `acpo --help` must not wait for JAX.
_HOMES = {
    "ACPO": "acpo.algorithms.acpo",
    "BC": "acpo.algorithms.bc",
    "Dataset": "acpo.data",
    "Policy": "acpo.policy",
    "Run": "acpo.training.loop",
    "UserError": "acpo.errors",
    "dual": "acpo.cci",
    "fixed": "acpo.cci",
    "load_dataset": "acpo.data",
    "load_policy": "acpo.policy",
    "make_algorithm": "acpo.algorithms",
    "make_env": "acpo.tasks",
    "train": "acpo.training.loop",
}

__all__ = [
    "ACPO",
    "BC",
    "Dataset",
    "Policy",
    "Run",
    "UserError",
    "dual",
    "fixed",
    "load_dataset",
    "load_policy",
    "make_algorithm",
    "make_env",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'acpo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
