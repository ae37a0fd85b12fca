"""The zoo's checkpoint, for every test of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the zoo beside this file

from settled import Files, read_files  # noqa: E402


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return read_files(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNAI_STREAMER_MEMORY_LIMIT", "RUNAI_STREAMER_CONCURRENCY"):
        monkeypatch.delenv(name, raising=False)
