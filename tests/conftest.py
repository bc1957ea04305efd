"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real datasets; the test is skipped where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("ACPO_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real datasets at {folder}; set ACPO_TEST_DATA to their folder")
    return folder
