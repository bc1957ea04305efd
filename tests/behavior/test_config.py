from __future__ import annotations

import pytest

from acpo.algorithms.bc import BC
from acpo.behavior.config import BehaviorConfig
from acpo.commands.train import parse
from acpo.errors import UserError


def test_the_flag_chooses_the_density_and_prefixed_flags_its_fit() -> None:
    words = ["--behavior", "cvae-is", "--behavior.hidden", "16", "16", "--behavior.latents", "4"]
    found = parse(words).config.behavior
    assert found == BehaviorConfig(model="cvae-is", hidden=(16, 16), latents=4)
    assert parse([]).config.behavior == BehaviorConfig()


def test_models_have_their_own_defaults() -> None:
    assert BehaviorConfig().layers == BehaviorConfig(model="mixture").layers == (512, 512)
    spot = BehaviorConfig(model="cvae-elbo")
    assert (spot.layers, spot.own("beta"), spot.learning_rate) == ((750, 750), 0.5, 1e-3)
    assert BehaviorConfig(model="cvae-is", latents=3).own("latents") == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latents": 8}, "--behavior.latents is for cvae-elbo and cvae-is; gaussian has no use"),
        ({"model": "mixture", "beta": 0.1}, "--behavior.beta is for"),
        ({"model": "cvae-is", "components": 2}, "--behavior.components is for mixture"),
        ({"model": "cvae-is", "latents": 0}, "--behavior.latents is 0; it must be above 0"),
        ({"hidden": (0,)}, "hidden layers are given as 0; it takes one or more"),
        ({"hidden": (8, -1)}, "hidden layers are given as 8 -1"),
        ({"hidden": ()}, "hidden layers are given as none at all"),
        ({"patience": -1}, "--behavior.patience is -1; it must be at least 0"),
        ({"max_steps": 0}, "--behavior.max-steps is 0"),
        ({"batch_size": 0}, "--behavior.batch-size is 0"),
        ({"check_every": -5}, "--behavior.check-every is -5"),
        ({"learning_rate": -1.0}, "--behavior.learning-rate is -1; it must be above 0"),
        ({"learning_rate": float("inf")}, "--behavior.learning-rate is inf"),
        ({"min_gain": float("nan")}, "--behavior.min-gain is nan; it must be 0 or more"),
        ({"held_out": 1.5}, "--behavior.held-out is 1.5; it must be between 0 and 1"),
        ({"model": "cvae"}, "No behaviour density is named 'cvae'. Did you mean 'cvae-"),
    ],
)
def test_what_a_model_has_no_use_for_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        BehaviorConfig(**fields)


def test_another_model_keeps_the_fit_and_leaves_out_what_it_has_no_use_for() -> None:
    config = BehaviorConfig(model="cvae-is", latents=4, beta=0.1, max_steps=7)
    assert config.of("gaussian") == BehaviorConfig(max_steps=7)
    assert config.of("cvae-elbo").latents == 4


def test_behaviour_cloning_refuses_a_density_it_would_not_ask() -> None:
    with pytest.raises(UserError, match="--behavior mixture has no use in bc"):
        BC(behavior=BehaviorConfig(model="mixture"))
