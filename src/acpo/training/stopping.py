"""Reasons for a run to stop before its last step: a person, or a number that is none."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np


class Interrupted(Exception):  # noqa: N818 -- not an error: it did what was asked
    """The run was asked to stop, and did, with a checkpoint."""


@contextmanager
def stop_on_signal(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the loop to stop after its chunk; a second insists."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def not_finite(states: Any) -> str | None:
    """The name of a weight that is NaN or infinite, which the losses show only a step later."""
    for place, leaf in jax.tree_util.tree_flatten_with_path(jax.device_get(states))[0]:
        if not np.isfinite(leaf).all():
            return f"state{jax.tree_util.keystr(place)}"
    return None
