"""The fixtures: a test that keeps a borrowed tensor fails, with the report; one that does not passes."""

from __future__ import annotations

import pytest
from settled import Files

pytest_plugins = ["pytester"]

START = """
import pytest
from gptoss_lab.weights.borrow import StaleViewError
from gptoss_lab.weights.streaming import stream

def weights():
    return stream({path!r}, memory_limit=0)
"""


def outcomes(pytester: pytest.Pytester, files: Files, code: str) -> pytest.RunResult:
    pytester.makeconftest('pytest_plugins = ["gptoss_lab.pytest_borrow"]')
    pytester.makepyfile(START.format(path=str(files.path)) + code)
    return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")


def test_audit_stream(pytester: pytest.Pytester, files: Files) -> None:
    result = outcomes(
        pytester,
        files,
        """
def test_right(audit_stream):
    assert sum(tensor.nbytes for _, tensor in audit_stream(weights()))

def test_wrong(audit_stream):
    assert dict(audit_stream(weights()))
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*92 of 96 tensors (41 requests) were kept and overwritten*", "*in test_wrong*"])


def test_guard_stream(pytester: pytest.Pytester, files: Files) -> None:
    result = outcomes(
        pytester,
        files,
        """
def test_right(guard_stream):
    assert [tensor.clone() for _, tensor in guard_stream(weights(), strict=True)]

def test_wrong(guard_stream):
    dict(guard_stream(weights()))["layers.0.mlp.experts.weight_scale"].sum()
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*StaleViewError: tensor 'layers.0.mlp.experts.weight_scale' is used too late (sum)*"])


def test_every_stream_that_a_test_opens(pytester: pytest.Pytester, files: Files) -> None:
    result = outcomes(
        pytester,
        files,
        """
def test_right(every_stream_audited):
    for _ in weights():
        pass
    assert [made.report().tensors for made in every_stream_audited] == [96]

def test_wrong(every_stream_audited):
    assert list(weights())

def test_late(every_stream_guarded):
    kept = dict(weights())
    assert len(every_stream_guarded) == 1
    with pytest.raises(StaleViewError):
        kept["layers.0.mlp.experts.weight_scale"].sum()

def test_nothing_is_left():
    assert type(next(iter(weights()))[1]).__name__ == "Tensor"
""",
    )
    result.assert_outcomes(passed=4, errors=1)


def test_nothing_is_registered_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(audit_stream): pass")
    pytester.runpytest_inprocess("-q").assert_outcomes(errors=1)
