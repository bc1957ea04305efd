"""Damaged files, read in a process of their own: HDF5 itself may crash on what is damaged."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

# More than any of these files takes: where a file is damaged, HDF5 may also read for ever, which
# ends the process too.
SECONDS = 60.0
# HDF5 2.0 was seen to crash once, and not with the same files again. Other readers have no excuse.
HDF5_CRASHES = 1


def read_each(
    read: Callable[[], None], path: Path, contents: Iterable[bytes], seconds: float = SECONDS
) -> int:
    """Call `read` with each of `contents` in `path`; how often that ended the process.

    `read` is a function of a module, with `functools.partial` for its arguments, and raises what
    it finds wrong. A crash cannot be caught by whoever reads, and would end the tests too.
    """
    crashes = 0
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        for content in contents:
            path.write_bytes(content)
            try:
                pool.submit(_read, read, seconds).result()
            except BrokenProcessPool:
                crashes += 1
                pool.shutdown()
                pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return crashes


def _read(read: Callable[[], None], seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        read()
    finally:
        faulthandler.cancel_dump_traceback_later()
