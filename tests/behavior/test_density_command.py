from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpo.cli import main
from acpo.commands.density import DensityArguments
from acpo.errors import UserError


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
        ({"rows": 0}, "--rows is 0"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DensityArguments(**fields)
