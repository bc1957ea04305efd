"""Densities by name."""

from __future__ import annotations

from acpo.behavior.config import BehaviorConfig
from acpo.behavior.cvae import CVAEDensity
from acpo.behavior.density import Density
from acpo.behavior.gaussian import GaussianDensity
from acpo.behavior.mixture import MixtureDensity
from acpo.networks import Head


def make_density(config: BehaviorConfig, head: Head) -> Density:
    """The density that a config asks for; `head` is πθ's, which the Gaussian shares."""
    if config.model == "gaussian":
        return GaussianDensity(head, config.layers)
    if config.model == "mixture":
        return MixtureDensity(
            config.layers, int(config.own("components")), head.log_std_min, head.log_std_max
        )
    estimator = "elbo" if config.model == "cvae-elbo" else "is"
    return CVAEDensity(estimator, config.layers, config.own("beta"), int(config.own("latents")))  # type: ignore[arg-type]
