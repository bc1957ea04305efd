"""The benchmark counts what an update really multiplies, and measures it."""

from __future__ import annotations

import pytest

from acpo import cli
from acpo.bench import speed


def test_flops_equal_a_count_by_hand() -> None:
    """Forward passes of each layer, weight gradients, and input gradients but for first layers."""
    s, a, h, b = 11, 3, 256, 256

    def forward(inputs: int, outputs: int) -> int:
        return 2 * b * (inputs * h + h * h + h * outputs)

    def backward(inputs: int, outputs: int) -> int:
        return forward(inputs, outputs) + 2 * b * (h * h + h * outputs)

    policy = forward(s, 2 * a) + backward(s, 2 * a)
    value = 2 * forward(s, 1) + backward(s, 1)
    critics = 2 * (forward(s + a, 1) + backward(s + a, 1))
    targets = 2 * forward(s + a, 1)
    assert speed.flops_per_update() == policy + value + critics + targets


def test_every_limit_can_be_measured() -> None:
    assert speed.limit_numpy(0.05) > 0
    assert speed.limit_xla(0.05) > 0


def test_a_measurement_runs_in_a_process_of_its_own() -> None:
    rate = speed._measure("numpy", threads=1, seconds=0.05)
    assert rate is not None
    assert rate > 0


@pytest.mark.parametrize("words", [[], ["sped"], ["speed", "--rounds", "0"]])
def test_a_wrong_call_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    assert capsys.readouterr().err
