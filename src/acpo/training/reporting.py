"""Telling a watching person how a run goes: a progress bar, or plain lines without a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_SECONDS = 10.0

# Metrics worth a place on one line, with the name they get there.
SHOWN = {
    "dial/lambda": "λ",
    "dial/constraint": "E[log πβ]",
    "value/loss": "L_V",
    "critic/loss": "L_Q",
    "policy/loss": "L_π",
}


class Reporter:
    """Says nothing; what `acpo.train` uses unless told otherwise."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def fitting(self, head: str, step: int, log_prob: float) -> None:
        """πβ with this head stands at `step`, with this mean held-out log-density."""

    def begin(self, step: int, total: int) -> None:
        """The loop starts, or goes on, at `step`."""

    def progress(self, step: int, metrics: dict[str, float]) -> None:
        """A chunk is done; metrics are means over seeds."""

    def evaluated(self, step: int, returns: np.ndarray, score: np.ndarray | None) -> None:
        """Returns [seeds, episodes] of an evaluation."""


class ConsoleReporter(Reporter):
    """A rich progress bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._console = console
        self._bar = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(compact=True),
                # E[log πβ] is no markup.
                TextColumn("{task.fields[facts]}", markup=False),
                console=console,
            )
        self._started = self._spoke = time.monotonic()
        self._first = self._total = 0
        self._facts = self._score = ""

    def __enter__(self) -> ConsoleReporter:
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("preparing", total=None, rate="", facts="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _may_speak(self) -> bool:
        if time.monotonic() - self._spoke < PLAIN_SECONDS:
            return False
        self._spoke = time.monotonic()
        return True

    def fitting(self, head: str, step: int, log_prob: float) -> None:
        facts = f"held-out E[log πβ] {log_prob:.3f} ({head})"
        if self._bar:
            self._bar.update(self._task, description="fitting πβ", completed=step, facts=facts)
        elif self._may_speak():
            self._say(f"fitting πβ: step {step:,}, {facts}")

    def begin(self, step: int, total: int) -> None:
        self._started, self._first, self._total = time.monotonic(), step, total
        if self._bar:
            self._bar.reset(self._task, description="training", total=total, completed=step)
        else:
            self._say(f"training: step {step:,} of {total:,}")

    def progress(self, step: int, metrics: dict[str, float]) -> None:
        rate = (step - self._first) / max(time.monotonic() - self._started, 1e-9)
        self._facts = " ".join(
            f"{symbol} {metrics[name]:.3g}" for name, symbol in SHOWN.items() if name in metrics
        )
        if self._bar:
            self._bar.update(self._task, completed=step, rate=f"{rate:.0f}/s", facts=self._line())
        elif self._may_speak() or step == self._total:
            left = (self._total - step) / max(rate, 1e-9)
            self._say(f"step {step:,}: {rate:.0f} updates/s, {left:.0f} s left, {self._facts}")

    def evaluated(self, step: int, returns: np.ndarray, score: np.ndarray | None) -> None:
        text = f"return {returns.mean():.1f}"
        self._score = text if score is None else f"score {score.mean():.1f}"
        if self._bar:
            self._bar.update(self._task, facts=self._line())
        else:
            both = text if score is None else f"{text}, {self._score}"
            self._say(f"step {step:,}: {both}")

    def _line(self) -> str:
        return f"{self._facts} {self._score}".rstrip()
