"""What a person sees of a run."""

from __future__ import annotations

import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from acpo.training import reporting
from acpo.training.reporting import ConsoleReporter

METRICS = {"dial/lambda": 0.123, "dial/constraint": -2.5, "critic/loss": 7.0, "other": 1.0}


def told(terminal: bool, score: np.ndarray | None = None) -> str:
    stream = StringIO()
    with ConsoleReporter(Console(file=stream, force_terminal=terminal, width=200)) as reporter:
        reporter.fitting("squashed", 500, -1.25)
        reporter.begin(0, 1000)
        reporter.progress(500, METRICS)
        reporter.evaluated(500, np.array([[300.0, 310.0]]), score)
    return stream.getvalue()


def last_line(text: str) -> str:
    """What stays on a terminal, without its control sequences."""
    return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", text).strip().splitlines()[-1]


def test_plain_lines_tell_step_rate_and_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "PLAIN_SECONDS", 0.0)
    text = told(terminal=False, score=np.array([[9.0, 10.0]]))
    assert "fitting πβ: step 500, held-out E[log πβ] -1.250 (squashed)" in text
    assert "training: step 0 of 1,000" in text
    (line,) = [line for line in text.splitlines() if "updates/s" in line]
    assert line.startswith("step 500: ")
    assert "λ 0.123 E[log πβ] -2.5 L_Q 7" in line
    assert "step 500: return 305.0, score 9.5" in text
    assert "\x1b" not in text


def test_plain_lines_are_rare_but_the_last_step_is_told() -> None:
    assert "updates/s" not in told(terminal=False)
    stream = StringIO()
    with ConsoleReporter(Console(file=stream)) as reporter:
        reporter.begin(0, 1000)
        reporter.progress(500, METRICS)
        reporter.progress(1000, METRICS)
    assert "step 1,000: " in stream.getvalue()
    assert "step 500: " not in stream.getvalue()


def test_without_reference_scores_the_return_is_told_once() -> None:
    text = told(terminal=False)
    assert [line for line in text.splitlines() if "return" in line] == ["step 500: return 305.0"]


def test_the_bar_shows_step_lambda_and_the_newest_score() -> None:
    text = told(terminal=True, score=np.array([[9.0, 10.0]]))
    last = last_line(text)
    assert "training" in last
    assert "500/1000" in last
    assert "λ 0.123 E[log πβ] -2.5" in last
    assert "score 9.5" in last


def test_the_bar_shows_returns_where_there_is_no_score() -> None:
    assert "return 305.0" in last_line(told(terminal=True))
