"""The README names every lesson by its title, and every command and file that it names is there."""

from __future__ import annotations

import re

import pytest

from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.map import course_map

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", course_map().entries, ids=lambda entry: entry.path.stem)
def test_a_lesson_is_listed_by_its_title(entry):
    assert f"[{entry.title}](notebooks/{entry.path.name})" in README


def test_every_link_to_a_file_leads_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_exists():
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"run", "test", "lab", "doctor"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []
