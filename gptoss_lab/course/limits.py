"""Stop a function that does not return."""

from __future__ import annotations

import ctypes
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

POLITE_TRIES = 5
AGAIN = 0.2  # seconds until the next polite try, where a bare `except:` has swallowed the last
HURRIED = tuple(microseconds / 1e6 for microseconds in range(1, 60))
"""Seconds between the tries after that, in quick succession, until one falls outside the `try`."""


def delays() -> Iterator[float]:
    """Seconds between the tries."""
    yield from (AGAIN,) * POLITE_TRIES
    yield from itertools.cycle(HURRIED)


class TimeUp(BaseException):
    """The time limit has passed. Not an Exception, so that `except Exception` does not catch it."""


def time_limit(seconds: float, run: Callable[[], Any]) -> Any:
    """Return `run()`, or raise `TimeUp` after `seconds`, also out of a loop without end in pure Python.

    In the main thread, where a notebook's cells run, an alarm signal interrupts it. Elsewhere it runs in a
    thread of its own, which is told to raise `TimeUp`; a thread that catches it again and again is left
    behind. A long call into C ends when it returns to Python.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return run_with_alarm(seconds, run)
    return run_in_thread(seconds, run)


def run_with_alarm(seconds: float, run: Callable[[], Any]) -> Any:
    running, delay = True, delays()

    def ring(signum: int, frame: Any) -> None:
        if running:
            signal.setitimer(signal.ITIMER_REAL, next(delay))
            raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            return run()
        finally:
            running = False
    finally:  # twice, since the alarm may ring in the inner `finally`
        running = False
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def run_in_thread(seconds: float, run: Callable[[], Any]) -> Any:
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["result"] = run()
        except BaseException as error:  # handed over to the waiting thread
            outcome["error"] = error

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    late = worker.is_alive()
    for _ in range(POLITE_TRIES):
        if not worker.is_alive():
            break
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(TimeUp))
        worker.join(AGAIN)
    if late:
        raise TimeUp
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
