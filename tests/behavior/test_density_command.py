from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from acpo.behavior.separation import Separation
from acpo.cli import main
from acpo.commands import density
from acpo.commands.density import DensityArguments
from acpo.errors import UserError
from acpo.networks import Head


def test_the_command_fits_asks_draws_and_answers(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", "gaussian,cvae-elbo,cvae-is", "--xi", "0.1", "0.8", "--hidden", "8", "8"]
    words += ["--steps", "1", "--head", "plain", "--out", str(tmp_path)]
    assert main(["density", str(hopper_file), *words, "--json", str(tmp_path / "found.json")]) == 0
    for picture in ("density.png", "density-sweep.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "found.json").read_text())
    gaussian, elbo, sampled = found["models"]
    assert [model["steps"] for model in found["models"]] == [1, 1, 1]
    assert gaussian["head"] == "plain"
    assert [p["xi"] for p in gaussian["perturbed"]] == [0.1, 0.8]
    # Two questions to one fit.
    assert elbo["seconds"] == sampled["seconds"]
    assert elbo["held_out_log_prob"] < sampled["held_out_log_prob"]
    printed = capsys.readouterr().out
    for model in found["models"]:
        near, far = model["perturbed"]
        assert near["passing"] > far["passing"]
        answer = "yes" if model["too_much_likelihood"] else "no"
        assert f"{model['model']}: {answer}; {model['because']}" in printed.replace("\n", "")
        assert f"{model['held_out_log_prob']:.3f}" in printed


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"models": "gausian"}, "Did you mean 'gaussian'"),
        ({"models": "mixture,mixture"}, "names a model twice"),
        ({"xi": (0.1, 0.0)}, "--xi is 0.1 0; it takes one or more numbers above 0"),
        ({"xi": (float("nan"),)}, "--xi is nan"),
        ({"xi": ()}, "--xi is empty"),
        ({"steps": 0}, "--steps is 0"),
        ({"rows": 99}, "--rows is 99; it must be at least 100"),
        ({"seed": -1}, "--seed is -1; it must be at least 0"),
        ({"hidden": (0,)}, "hidden layers are given as 0"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DensityArguments(**fields)


@pytest.mark.parametrize("steps", [1, 300, 501, 700, 1_999, 10_000])
def test_a_fit_ends_at_the_steps_asked_for_and_not_beyond(steps: int) -> None:
    config = DensityArguments(steps=steps).config("mixture")
    # The loop ends at the first look at or after max_steps.
    end = -(-config.max_steps // config.check_every) * config.check_every
    assert 0.99 * steps <= end <= steps
    assert config.check_every <= 500


@pytest.mark.parametrize("flag", ["--out", "--json"])
@pytest.mark.parametrize("place", ["a file/x", "a folder"])
def test_a_place_that_cannot_be_written_is_refused_before_the_fits(
    flag: str,
    place: str,
    hopper_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fit(*_: object) -> None:
        raise AssertionError("fitted before the places were tried")

    monkeypatch.setattr(density, "fit_behavior", fit)
    (tmp_path / "a file").touch()
    (tmp_path / "a folder" / "density.png").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    words = ["--out", str(tmp_path / "new" / "pictures"), flag, str(tmp_path / place)]
    assert main(["density", str(hopper_file), *words]) == 2
    assert f"Could not write {tmp_path / place}" in capsys.readouterr().err.replace("\n", " ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("head", "says"), [("plain", False), ("squashed", True)])
def test_rounding_at_a_bound_is_spoken_of_where_a_head_is_squashed(head: str, says: bool) -> None:
    separation = Separation("gaussian", np.zeros(1), ())
    behavior = SimpleNamespace(head=Head.settled(head, -5.0, 2.0))
    found = [density.Found(behavior, 0.0, separation)]  # type: ignore[arg-type]
    words = "\n".join(density._words(found, [], on_bound=0.5))
    assert "50% of the rows have an action exactly on a bound" in words
    assert ("squashed Gaussian" in words) == says
