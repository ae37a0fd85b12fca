"""Variables that were set for a while have their old values afterwards, also after an error."""

from __future__ import annotations

import os

import pytest

from gptoss_lab.weights.environment import restored


def test_what_was_set_changed_or_removed_is_put_back(monkeypatch):
    monkeypatch.setenv("GPTOSS_LAB_KEPT", "old")
    monkeypatch.setenv("GPTOSS_LAB_GONE", "there")
    monkeypatch.delenv("GPTOSS_LAB_NEW", raising=False)
    with pytest.raises(KeyError, match="stop"), restored(["GPTOSS_LAB_KEPT", "GPTOSS_LAB_GONE", "GPTOSS_LAB_NEW"]):
        os.environ |= {"GPTOSS_LAB_KEPT": "changed", "GPTOSS_LAB_NEW": "1"}
        del os.environ["GPTOSS_LAB_GONE"]
        raise KeyError("stop")
    assert os.environ["GPTOSS_LAB_KEPT"] == "old"
    assert os.environ["GPTOSS_LAB_GONE"] == "there"
    assert "GPTOSS_LAB_NEW" not in os.environ
