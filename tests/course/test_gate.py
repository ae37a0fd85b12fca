"""The gate fails each notebook of fixtures/lint and fixtures/live, and passes the two beside them."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gptoss_lab.course import gate
from gptoss_lab.course.recorded import record_problems, sanitiser_problems

FIXTURES = Path(__file__).with_name("fixtures")
GOOD = [FIXTURES / "good.ipynb", FIXTURES / "kernel_of_another_machine.ipynb"]

# What the lint of recorded outputs says of each notebook in fixtures/lint.
RECORDED = {
    "absolute_path": "absolute path, /home/someone/model.safetensors",
    "absolute_path_in_traceback": "absolute path, /home/someone/gptoss_lab/model.py:3",
    "cleared_output": "clear_output",
    "counts_not_from_one": r"execution counts are \[1, None\], not 1..2",
    "error_without_tag": "records ZeroDivisionError and has no raises-exception tag",
    "no_code": "no code cell",
    "null_counts": r"execution counts are \[None, None\], not 1..2",
    "outputs_without_counts": r"execution counts are \[None\], not 1..1",
    "raises_nothing_recorded": "tagged raises-exception and records no error",
    "skipped_by_comment": "kept from the gate",
    "skipped_by_tag": "kept from the gate",
    "timed": "%%time",
    "trailing_semicolon": "ends with ';'",
    "unknown_magic_recorded": "records a UsageError",
    "widget_recorded": "static twin",
}

# What running says of each notebook in fixtures/live, whose recorded outputs alone look right.
LIVE = {
    "changed_alt_text": "Cell outputs differ",
    "changed_bits": "Cell outputs differ",
    "changed_output": "Cell outputs differ",
    "dead_kernel": "the kernel died while running this cell",
    "new_error": "Cell execution caused an exception",
    "outputs_stripped": "Cell outputs differ",
    "raises_nothing": "tagged raises-exception and raised nothing",
    "unknown_magic": "rest of the cell never ran: UsageError",
    "widget_without_twin": "widget without a static twin",
}


def names(folder: str, suffix: str = ".ipynb") -> set[str]:
    return {path.stem for path in (FIXTURES / folder).glob(f"*{suffix}")}


def test_each_fixture_is_expected_to_fail_for_a_reason() -> None:
    assert names("lint") == set(RECORDED) and names("live") == set(LIVE)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_lint_finds_what_nbval_lets_pass(name: str) -> None:
    problems = record_problems(FIXTURES / "lint" / f"{name}.ipynb")
    assert any(re.search(RECORDED[name], problem) for problem in problems), problems


@pytest.mark.parametrize("path", [*GOOD, *sorted((FIXTURES / "live").glob("*.ipynb"))], ids=lambda path: path.stem)
def test_lint_is_content_with_what_only_running_can_tell(path: Path) -> None:
    assert record_problems(path) == []


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """For each notebook the message of each failed cell, from one run of pytest over all of them.

    A dead kernel that nobody notices would wait out a cell's 300 seconds, and the run its own 120.
    """
    folder = tmp_path_factory.mktemp("gate")
    paths = [*GOOD, *sorted((FIXTURES / "live").glob("*.ipynb"))]
    command = gate.command_line(paths, 300, 1, gate.SANITISER)
    command += ["--junitxml", str(folder / "report.xml"), "-o", "junit_family=xunit1"]
    finished = subprocess.run(command, cwd=folder, timeout=120, capture_output=True, text=True, check=False)
    assert finished.returncode == 1, finished.stdout
    cells = list(ElementTree.parse(folder / "report.xml").iter("testcase"))
    found: dict[str, dict[str, str]] = {path.stem: {} for path in paths}
    seen = set()
    for cell in cells:
        notebook = Path(cell.get("file") or cell.get("classname", "").replace(".", "/")).name
        notebook = notebook.removesuffix(".ipynb")
        seen.add(notebook)
        failures = [*cell.iter("failure"), *cell.iter("error")]
        if failures:
            found[notebook][cell.get("name", "")] = "".join(failure.text or "" for failure in failures)
    assert seen == set(found)
    return found


@pytest.mark.parametrize("name", sorted(LIVE))
def test_running_fails(outcomes: dict[str, dict[str, str]], name: str) -> None:
    assert outcomes[name].get("Cell 0"), f"{name} passed"
    assert LIVE[name] in outcomes[name]["Cell 0"]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_running_passes(outcomes: dict[str, dict[str, str]], path: Path) -> None:
    assert outcomes[path.stem] == {}


def test_gate_passes_two_notebooks_at_once_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Outside the project all notebooks once had the same node ids, and all but one were left out."""
    (tmp_path / "solutions").mkdir()
    copies = [tmp_path / "one.ipynb", tmp_path / "solutions" / "one.ipynb", tmp_path / "two.ipynb"]
    for copy in copies:
        shutil.copy(GOOD[1], copy)
    monkeypatch.chdir(tmp_path.parent)
    assert gate.main(copies) == 0
    assert "3 passed" in capfd.readouterr().out


def test_gate_fails_a_changed_notebook(capfd: pytest.CaptureFixture[str]) -> None:
    assert gate.main([FIXTURES / "live" / "changed_output.ipynb"]) == 1
    assert "1 failed" in capfd.readouterr().out


def test_gate_runs_nothing_that_lint_refuses(capfd: pytest.CaptureFixture[str]) -> None:
    assert gate.main([FIXTURES / "lint" / "null_counts.ipynb"]) == 1
    assert "not 1..2" in capfd.readouterr().out


def test_gate_of_nothing_fails() -> None:
    assert gate.main([]) == 1


def test_cells_that_did_not_run_fail_the_gate(tmp_path: Path) -> None:
    command = gate.command_line([GOOD[1]], 60, 1, gate.SANITISER)
    command[command.index("--gate-cells") + 1] = "2"
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 1 and "1 passed" in finished.stdout
    assert "1 of 2 cells ran" in finished.stderr


@pytest.mark.parametrize("name", sorted(names("sanitisers", ".cfg")))
def test_malformed_sanitiser_is_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = FIXTURES / "sanitisers" / f"{name}.cfg"
    assert sanitiser_problems(path)
    assert gate.main(GOOD, sanitiser=path) == 1
    assert path.name in capfd.readouterr().out


def test_pytest_refuses_a_malformed_sanitiser(tmp_path: Path) -> None:
    path = FIXTURES / "sanitisers" / "space_before_colon.cfg"
    command = gate.command_line([GOOD[1]], 60, 1, path)
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert "space_before_colon.cfg" in finished.stderr


def test_own_sanitiser_is_well_formed_and_read_whole() -> None:
    from nbval.plugin import get_sanitize_patterns

    text = gate.SANITISER.read_text(encoding="utf-8")
    assert sanitiser_problems(gate.SANITISER) == []
    assert len(get_sanitize_patterns(text)) == text.count("\n[") > 0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("<f at 0x7f1234567890>", "<f at 0x7fabcdefabcd>"),
        ("2026-01-02 03:04:05.678", "2025-12-30 13:14:15"),
        ("/tmp/ipykernel_12/345.py:3: UserWarning", "/tmp/ipykernel_98/765.py:3: UserWarning"),
        ("/tmp/tmpab12_x9z/a.bin", "/tmp/tmpzzzzzzzz/a.bin"),
        ('<img src="data:image/png;base64,iVBO\nRw0=">', '<img src="data:image/png;base64,AAAA">'),
        (
            '{"model_id": "0123456789abcdef0123456789abcdef"}',
            '{"model_id": "ffffffffffffffffffffffffffffffff"}',
        ),
    ],
)
def test_sanitiser_makes_equal(text: str, same: str) -> None:
    assert sanitised(text) == sanitised(same) != text


@pytest.mark.parametrize(
    "fact",
    [
        "0x7fc00000",
        "bits 0xff80ff80",
        "2026-11-30",
        "3.14159",
        "d41d8cd98f00b204e9800998ecf8427e",
        "data:image/png",
    ],
)
def test_sanitiser_keeps_facts(fact: str) -> None:
    assert sanitised(fact) == fact


def sanitised(text: str) -> str:
    from nbval.plugin import get_sanitize_patterns

    for regex, replacement in get_sanitize_patterns(gate.SANITISER.read_text(encoding="utf-8")):
        text = re.sub(regex, replacement, text)
    return text
