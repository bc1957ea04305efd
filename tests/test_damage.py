"""The helper that reads damaged files counts crashes, goes on after one, and passes errors on."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from damage import read_each


def read(path: Path) -> None:
    content = path.read_bytes()
    if content == b"crash":
        os.abort()
    if content == b"for ever":
        threading.Event().wait()
    path.with_name(content.decode()).touch()
    assert content != b"wrong"


def test_a_crash_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    contents = [b"a", b"crash", b"b", b"for ever", b"c"]
    assert read_each(partial(read, path), path, contents, seconds=2.0) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"x", "a", "b", "c"}


def test_what_is_found_wrong_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(AssertionError):
        read_each(partial(read, path), path, [b"a", b"wrong", b"b"])
    assert not (tmp_path / "b").exists()
