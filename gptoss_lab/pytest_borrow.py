"""pytest fixtures that put the tools of `gptoss_lab.weights.borrow` around a loader's tests.

Not registered by itself. In the conftest.py at the root of your tests:

    pytest_plugins = ["gptoss_lab.pytest_borrow"]

A test that uses `audit_stream` or `every_stream_audited` fails, when its body is done, if a tensor was kept while a
later request was written over it. docs/borrow.md shows each in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gptoss_lab.weights.borrow import Audit, Guard, audit, guard


@pytest.fixture
def audit_stream() -> Iterator[Callable[..., Audit]]:
    """`audit`, whose reports are looked at when the test is done."""
    audits: list[Audit] = []

    def audit_and_remember(stream) -> Audit:
        audits.append(audit(stream))
        return audits[-1]

    yield audit_and_remember
    fail_if_kept(audits)


@pytest.fixture
def guard_stream() -> Iterator[Callable[..., Guard]]:
    """`guard`, whose streams are closed when the test is done, however it ended."""
    guards: list[Guard] = []

    def guard_and_remember(stream, strict: bool = False) -> Guard:
        guards.append(guard(stream, strict))
        return guards[-1]

    yield guard_and_remember
    for made in guards:
        made.close()


@pytest.fixture
def every_stream_audited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Audit]]:
    """Audit every stream that the test opens, wherever: for loaders that make their own. The value lists the audits."""
    from runai_model_streamer import SafetensorsStreamer

    audits: list[Audit] = []
    original = SafetensorsStreamer.get_tensors

    def get_tensors(self) -> Audit:
        audits.append(audit(original(self)))
        return audits[-1]

    monkeypatch.setattr(SafetensorsStreamer, "get_tensors", get_tensors)
    yield audits
    fail_if_kept(audits)


@pytest.fixture
def every_stream_guarded(monkeypatch: pytest.MonkeyPatch) -> list[Guard]:
    """Guard every stream that the test opens, wherever. The value lists the guards."""
    from runai_model_streamer import SafetensorsStreamer

    guards: list[Guard] = []
    original = SafetensorsStreamer.get_tensors

    def get_tensors(self) -> Guard:
        guards.append(guard(original(self)))
        return guards[-1]

    monkeypatch.setattr(SafetensorsStreamer, "get_tensors", get_tensors)
    return guards


def fail_if_kept(audits: list[Audit]) -> None:
    """Fail the test with the reports of all audits that found something."""
    found = [str(report) for report in (made.report() for made in audits) if report.kept]
    if found:
        pytest.fail("\n".join(found), pytrace=False)
