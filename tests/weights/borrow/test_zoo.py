"""The table of the zoo holds: who is wrong, tensor by tensor against safetensors, and which tool says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from settled import Files, settled
from zoo import ROWS, SILENT, PlannedParameters, Row, expected

from gptoss_lab.weights.borrow import LeavesGuard, StaleViewError, audit, guard, prove
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.plan import plan

HERE = Path(__file__).parent
LIMITS = ["0", "quarter", "half"]
every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
every_limit = pytest.mark.parametrize("limit", LIMITS)


def model_for(row: Row, files: Files, limit: int) -> PlannedParameters:
    return PlannedParameters(expected(row, files.stored), plan(files.path, limit))


def load(row: Row, files: Files, limit: int, around=lambda weights: weights) -> list[str]:
    """Load, look at every parameter, and return the names of the wrong ones."""
    model = model_for(row, files, limit)
    row.load(model, around(settled(files, limit)))
    return differing(expected(row, files.stored), {name: tensor.clone() for name, tensor in model.tensors.items()})


@every_row
@every_limit
def test_a_wrong_loader_is_wrong_and_a_right_one_right(files: Files, row: Row, limit: str) -> None:
    assert bool(load(row, files, files.limits[limit])) != row.right


@every_row
def test_with_a_buffer_for_everything_every_loader_is_right_and_no_tool_speaks(files: Files, row: Row) -> None:
    seen = []
    assert load(row, files, -1, lambda weights: seen.append(audit(weights)) or seen[0]) == []
    assert seen[0].report().kept == ()
    if row.guard != "LeavesGuard":
        assert load(row, files, -1, guard) == []


@every_row
@every_limit
def test_audit_says_what_the_table_says(files: Files, row: Row, limit: str) -> None:
    seen = []
    wrong = load(row, files, files.limits[limit], lambda weights: seen.append(audit(weights)) or seen[0])
    report = seen[0].report()
    assert bool(wrong) != row.right  # the audit changes nothing
    assert bool(report.kept) == row.audit
    assert report.guessed == 0 and report.tensors == len(files.stored)
    if row.audit and not row.right and row.case == "plain":
        assert set(wrong) <= set(report.names)  # none is missed
    if not row.right and not row.audit and "one_step" not in row.name and row.name != "looks_ahead":
        assert set(wrong) <= {kept.name for kept in report.in_variables}


@every_row
@every_limit
@pytest.mark.parametrize("strict", [False, True], ids=["guard", "strict"])
def test_guard_says_what_the_table_says(files: Files, row: Row, limit: str, strict: bool) -> None:
    says, wrong = SILENT, []
    try:
        wrong = load(row, files, files.limits[limit], lambda weights: guard(weights, strict))
    except (StaleViewError, LeavesGuard) as error:
        says = type(error).__name__
    assert says == (row.strict if strict else row.guard)
    assert says != SILENT or bool(wrong) != row.right  # the guard changes nothing


@every_limit
def test_prove_says_what_the_table_says(files: Files, limit: str) -> None:
    """One child for all loaders: it forks before each, and the fork ends where the loader reads late."""
    command = [HERE / "run_zoo.py", files.path.parent, str(files.limits[limit])]
    proof = prove(command, timeout=300, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert proof.returncode == 0, proof.stderr
    process = dict(line.split()[::-1] for line in proof.stdout.splitlines())  # name -> pid
    late = {read.pid: read for read in proof.late_reads}
    assert process.keys() == ROWS.keys()
    found = {name: int(pid) in late for name, pid in process.items()}
    assert found == {row.name: row.prove for row in ROWS.values()}
    for name, pid in process.items():
        if found[name]:
            read = late[int(pid)]
            assert read.tensor in files.stored
            assert Path(read.line.file).name in ("cases.py", "zoo.py", "run_zoo.py"), read
