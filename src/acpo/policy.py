"""A policy on its own: actor, normalisation and units in one file, run with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acpo.actors import ACTORS, from_arrays, to_arrays
from acpo.data.features import Features
from acpo.errors import UserError
from acpo.files import load_arrays, save_arrays

FORMAT = "acpo-policy-2"
_STATISTICS = ("observation_mean", "observation_std")


@dataclass(frozen=True, eq=False)
class Policy:
    """The deterministic action of a trained actor: raw observations in, actions out.

    Actions are in [−1, 1], or in the units of the data where it was scaled on loading.
    """

    actor: Any
    """One of `acpo.actors`."""
    observation_mean: np.ndarray
    observation_std: np.ndarray
    info: dict[str, Any]
    features: Features = field(default_factory=Features)

    @property
    def observation_dim(self) -> int:
        return self.observation_mean.shape[-1]

    @property
    def action_dim(self) -> int:
        return self.actor.action_dim

    def __call__(self, observation: Any) -> np.ndarray:
        """The mean action for one observation [s], a batch [N, s], or a record by column name."""
        if isinstance(observation, Mapping):
            observation = self.features.encode(observation)
        return self.features.to_units(self.unit_action(observation))

    def unit_action(self, observation: Any) -> np.ndarray:
        """The same in [−1, 1]."""
        x = np.asarray(observation, dtype=np.float32)
        if x.shape[-1:] != (self.observation_dim,):
            raise UserError(
                f"The policy was trained on observations of {self.observation_dim} numbers, "
                f"but was given shape {x.shape}."
            )
        return self.actor((x - self.observation_mean) / self.observation_std)

    def save(self, path: str | Path) -> None:
        arrays = {
            **{name: getattr(self, name) for name in _STATISTICS},
            **to_arrays(self.actor),
        }
        header = {
            "format": FORMAT,
            "actor": type(self.actor).__name__,
            "features": self.features.to_json(),
            **self.info,
        }
        save_arrays(Path(path), arrays, header)


def load_policy(path: str | Path) -> Policy:
    """Load a policy file, or the first seed's policy of a run directory."""
    return load_policies(path)[0]


def load_policies(path: str | Path) -> list[Policy]:
    """Load every seed's policy of a run directory, or the one of a policy file."""
    path = Path(path)
    if not path.is_dir():
        return [_load(path)]
    found = sorted((path / "policies").glob("seed-*.npz"), key=lambda p: int(p.stem[5:]))
    if not found:
        raise UserError(
            f"{path} holds no policy. A run writes one at its first checkpoint; begin it, or go "
            "on with it, by acpo train --resume."
        )
    return [_load(file) for file in found]


def _load(path: Path) -> Policy:
    arrays, header = load_arrays(path)
    if header.pop("format", None) != FORMAT:
        raise UserError(
            f"{path} is not a policy file of this version; give policies/seed-N.npz of a run."
        )
    try:
        mean, std = (arrays.pop(name) for name in _STATISTICS)
        return Policy(
            from_arrays(ACTORS[header.pop("actor")], arrays),
            mean,
            std,
            features=Features.from_json(header.pop("features", {})),
            info=header,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not a whole policy file ({type(error).__name__}: {error}); put back a "
            "copy of it, or go on with its run by acpo train --resume, which writes it again."
        ) from error
