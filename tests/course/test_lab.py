"""What every lesson starts with."""

from __future__ import annotations

import platform
from importlib.metadata import version

from gptoss_lab.course import lab
from gptoss_lab.weights.checkpoint import read_checkpoint


def test_the_data_lies_where_the_lessons_look():
    assert lab.CAPITALS.parent == lab.DATA
    assert len(read_checkpoint(lab.CAPITALS).tensors) == 155


def test_the_versions_are_those_installed(capsys):
    lab.print_versions("torch", "safetensors")
    line = f"python {platform.python_version()} · torch {version('torch')} · safetensors {version('safetensors')}\n"
    assert capsys.readouterr().out == line


def test_what_is_not_installed_is_said(capsys):
    lab.print_versions("torch", "no-such-package")
    assert capsys.readouterr().out.endswith(" · no-such-package not installed\n")
