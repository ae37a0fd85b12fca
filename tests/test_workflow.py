"""The workflow on GitHub asks for what the project has, and docs/ci.md lists all that the gate catches."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "course.yml"
PAGE = ROOT / "docs" / "ci.md"
FIXTURES = ROOT / "tests" / "course" / "fixtures"


class OnIsAWord(yaml.SafeLoader):
    """YAML 1.1 reads the key `on` as True; GitHub does not."""


OnIsAWord.yaml_implicit_resolvers = {
    letter: [(tag, regex) for tag, regex in resolvers if tag != "tag:yaml.org,2002:bool" or letter not in "oO"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def workflow() -> dict:
    return yaml.load(WORKFLOW.read_text(encoding="utf-8"), Loader=OnIsAWord)  # noqa: S506  a SafeLoader


def steps(job: str) -> list[dict]:
    return workflow()["jobs"][job]["steps"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in steps(job) if "run" in step]


def blocks_of_the_page() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def pin(name: str) -> Version:
    (need,) = [Requirement(line) for line in PROJECT["dependencies"] if Requirement(line).name == name]
    (exact,) = need.specifier
    assert exact.operator == "=="
    return Version(exact.version)


# ---- when and on what


def test_it_runs_on_every_push_and_once_a_week():
    when = workflow()["on"]
    assert {"push", "pull_request", "schedule"} <= when.keys()
    assert when["push"] is None, "a filter would leave pushes out"
    ((minute, hour, day, month, weekday),) = [entry["cron"].split() for entry in when["schedule"]]
    assert minute.isdigit() and hour.isdigit() and weekday.isdigit() and (day, month) == ("*", "*")


def test_the_pythons_are_those_of_the_project_and_each_has_a_lock():
    pythons = workflow()["jobs"]["gate"]["strategy"]["matrix"]["python"]
    offered = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert pythons == offered
    for python in pythons:
        assert (ROOT / "locks" / f"cpu-py{python.replace('.', '')}.txt").is_file()


def test_one_triton_is_the_locks_and_every_other_one_is_put_over_it():
    locked = f"{pin('triton').major}.{pin('triton').minor}"
    tritons = workflow()["jobs"]["gate"]["strategy"]["matrix"]["triton"]
    assert locked in tritons and len(tritons) == 2
    (other,) = set(tritons) - {locked}
    over = [step for step in steps("gate") if "pip install" in step.get("run", "")]
    assert [step["if"] for step in over] == [f"matrix.triton == '{other}'"]
    assert f'"triton=={other}.*"' in over[0]["run"] and "--no-deps" in over[0]["run"]
    ran = commands("gate")
    assert ran.index("make venv") < ran.index(over[0]["run"]) < ran.index("make test")


def test_only_the_triton_that_no_lock_holds_may_fail_and_not_in_the_weekly_run():
    allowed = workflow()["jobs"]["gate"]["continue-on-error"]
    assert allowed == "${{ matrix.triton == '3.9' && github.event_name != 'schedule' }}"
    assert [name for name, job in workflow()["jobs"].items() if "continue-on-error" in job] == ["gate"]


def test_the_test_that_is_left_out_exists():
    (left_out,) = re.findall(r"--deselect=(\S+?)::(\w+)", WORKFLOW.read_text(encoding="utf-8"))
    path, name = left_out
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


# ---- what it does


def test_it_calls_targets_that_make_has():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "\n".join(command for job in workflow()["jobs"] for command in commands(job))
    called = set(re.findall(r"(?<![\w-])make ([a-z][a-z-]*)", text)) - {"python"}  # a package of apt's
    assert {"venv", "test", "lint", "doctor", "test-browser", "run", "lock"} <= called
    assert called <= targets


def test_the_pictures_are_kept_also_when_a_lesson_failed():
    (upload,) = [step for step in steps("browser") if step.get("with", {}).get("path") == "build/screens"]
    assert upload["uses"].startswith("actions/upload-artifact@") and upload["if"] == "always()"
    browser = (ROOT / "tests" / "browser" / "test_lessons.py").read_text(encoding="utf-8")
    assert 'SCREENS = REPOSITORY / "build" / "screens"' in browser


def test_the_browser_job_installs_what_ci_installs():
    wanted = re.search(r"for package in (.+); do", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))[1].split()
    assert set(wanted) <= set(commands("browser")[0].replace("\\", " ").split())


def test_every_job_ends_and_may_only_read():
    assert workflow()["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 60 for job in workflow()["jobs"].values())


@pytest.mark.parametrize("path", [WORKFLOW, PAGE], ids=lambda path: path.name)
def test_no_host_is_named(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"https?://\S+|\b(?:[\w-]+\.)+(?:com|org|io|net|dev)\b", text) == []


def test_actions_are_named_with_a_version():
    used = [step["uses"] for job in workflow()["jobs"] for step in steps(job) if "uses" in step]
    used += re.findall(r"uses: (\S+)", PAGE.read_text(encoding="utf-8"))
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)
    assert len({action.split("@")[0] for action in used}) == len(set(used)), "two versions of one action"


# ---- the page


def test_the_page_names_every_job():
    table = re.findall(r"^\| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in table if name != "job"] == list(workflow()["jobs"])


def test_the_page_names_every_notebook_that_must_fail_and_no_other():
    text = PAGE.read_text(encoding="utf-8")
    listed = text[text.index("## What the gate catches") : text.index("## What is not compared")]
    last_columns = re.findall(r"\| (`[^|]+`) \|$", listed, re.MULTILINE)
    named = re.findall(r"`(\w+)`", "\n".join(last_columns))
    fixtures = [path.stem for folder in ("lint", "live", "sanitisers") for path in (FIXTURES / folder).iterdir()]
    assert sorted(named) == sorted(fixtures)


def test_snippets_are_yaml_and_call_what_is_there():
    gitlab, gpu = (yaml.safe_load(block) for block in blocks_of_the_page())
    assert gitlab["course"]["script"] == [".ci/run"] and (ROOT / ".ci" / "run").is_file()
    assert gitlab["course"]["variables"] == {"GPTOSS_LAB_DEVICE": "cpu"}
    assert gpu["gpu"]["env"] == {"GPTOSS_LAB_DEVICE": "gpu"}
    assert [step.get("run") for step in gpu["gpu"]["steps"]][1:] == ["make venv", "make doctor", "make test"]


def test_the_page_lists_what_the_sanitiser_replaces():
    text = PAGE.read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "sanitize.cfg" in line]
    names = re.findall(r"^\[(.+)\]$", (ROOT / "gptoss_lab/course/sanitize.cfg").read_text(), re.MULTILINE)
    listed = line.split(" replaces: ")[1].split(", ")
    assert len(listed) == len(names)
