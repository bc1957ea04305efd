"""Which behaviour density is fitted, and how."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from tyro.conf import arg

from acpo.errors import UserError

Model = Literal["gaussian", "cvae-elbo", "cvae-is", "mixture"]
MODELS: tuple[str, ...] = get_args(Model)

_CVAE = ("cvae-elbo", "cvae-is")
# Fields that only some models have, with the value that None stands for.
_OWN: dict[str, tuple[tuple[str, ...], float]] = {
    "components": (("mixture",), 8),
    "beta": (_CVAE, 0.5),
    "latents": (_CVAE, 8),
    "every": (_CVAE, 4),
}


@dataclass(frozen=True)
class BehaviorConfig:
    """Which πβ is fitted, and how. A field that the model has no use for must be left at None."""

    # The one flag without the prefix: --behavior cvae-is, beside --behavior.hidden and the rest.
    model: Annotated[Model, arg(name="behavior", prefix_name=False)] = "gaussian"
    """πβ: a Gaussian with the head of πθ; a CVAE, its log-density estimated by the ELBO or by
    importance sampling; or a mixture with several modes and mass at the action bounds."""
    hidden: tuple[int, ...] | None = None
    """Hidden layers of πβ. None: 512 512, and 750 750 for the CVAE's encoder and decoder."""
    components: int | None = None
    """Mixture: how many components. None: 8."""
    beta: float | None = None
    """CVAE: β, the price of the KL term; the decoder's σ is √(β/4). None: 0.5."""
    latents: int | None = None
    """CVAE: L, latents per estimate of log πβ. None: 8."""
    every: int | None = None
    """CVAE: the dual step asks for log πβ at every so-manieth row of the batch. None: 4."""
    learning_rate: float = 1e-3
    """Adam's step size for πβ."""
    batch_size: int = 256
    """Rows per step."""
    max_steps: int = 10_000
    """N_β at most, rounded up to a look; early stopping usually ends sooner."""
    check_every: int = 500
    """Steps between two looks at the held-out episodes."""
    patience: int = 4
    """Looks without improvement before stopping; the best look is kept. 0: all of max-steps are
    taken and the last is kept, whatever the held-out episodes say."""
    min_gain: float = 0.01
    """Nats of mean held-out log πβ that count as an improvement."""
    held_out: float = 0.1
    """Share of episodes held out for early stopping."""

    def __post_init__(self) -> None:
        check_model(self.model)
        if self.hidden is not None and (not self.hidden or min(self.hidden) < 1):
            given = " ".join(map(str, self.hidden)) or "none at all"
            raise UserError(
                f"The behaviour density's hidden layers are given as {given}; it takes one or "
                "more, each of at least 1 unit."
            )
        least_of = {"batch_size": 1, "max_steps": 1, "check_every": 1, "patience": 0}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise UserError(
                    f"--behavior.{flag} is {getattr(self, name)}; it must be at least {least}."
                )
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(
                f"--behavior.learning-rate is {self.learning_rate:g}; it must be above 0."
            )
        if not self.min_gain >= 0:
            raise UserError(f"--behavior.min-gain is {self.min_gain:g}; it must be 0 or more.")
        if not 0 < self.held_out < 1:
            raise UserError(
                f"--behavior.held-out is {self.held_out:g}; it must be between 0 and 1."
            )
        for name, (models, _) in _OWN.items():
            value = getattr(self, name)
            if value is None:
                continue
            if self.model not in models:
                raise UserError(
                    f"--behavior.{name} is for {' and '.join(models)}; {self.model} has no use "
                    "for it. Leave it out, or choose another --behavior."
                )
            if not 0 < value < float("inf"):
                raise UserError(f"--behavior.{name} is {value:g}; it must be above 0.")

    @property
    def layers(self) -> tuple[int, ...]:
        """`hidden`, or what None stands for."""
        if self.hidden is not None:
            return self.hidden
        return (750, 750) if self.model in _CVAE else (512, 512)

    def own(self, name: str) -> float:
        """A field that only some models have, or what its None stands for."""
        value = getattr(self, name)
        return _OWN[name][1] if value is None else value

    def of(self, model: Model) -> BehaviorConfig:
        """The same fit of another model; fields that it has no use for are left out."""
        unused: dict[str, Any] = {
            name: None for name, (models, _) in _OWN.items() if model not in models
        }
        return replace(self, model=model, **unused)


def check_model(name: str) -> None:
    if name not in MODELS:
        near = difflib.get_close_matches(name.lower(), MODELS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(
            f"No behaviour density is named {name!r}.{hint} There are {', '.join(MODELS)}."
        )
