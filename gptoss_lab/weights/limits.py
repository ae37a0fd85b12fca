"""The streamer's memory limit and its reading threads: read, completed and checked before a stream opens."""

from __future__ import annotations

import operator
import os
import re

LIMIT_VARIABLE = "RUNAI_STREAMER_MEMORY_LIMIT"
CONCURRENCY_VARIABLE = "RUNAI_STREAMER_CONCURRENCY"
DEFAULT_MEMORY_LIMIT = 40_000_000_000  # the streamer's own, when the variable is not set
UNLIMITED = -1  # one buffer for everything
SMALLEST = 0  # a buffer as large as the largest tensor

UNITS = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
THREADS = re.compile(r"\s*\+?0*[1-9]\d*")  # what the streamer reads in the environment
SIZE = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


class StreamingError(ValueError):
    """A stream that was refused before its first tensor, or that broke off."""


def parse_size(size: int | str) -> int:
    """Read a memory limit.

    `size` is a number of bytes, or a text such as "1158266880", "1GiB", "512 KiB", "4GB", "1.5 MiB". -1 or
    "unlimited" is a buffer for everything; 0 is a buffer for the largest tensor alone. Upper and lower case
    are the same, "GB" is 10**9 bytes and "GiB" is 2**30.

    Raises:
        StreamingError: anything else, with the value and what would be understood.
    """
    refused = StreamingError(
        f'memory_limit={size!r} is not a size: give bytes (1158266880), a size ("1GiB", "512 KiB", "4GB"), '
        "-1 for no limit, or 0 for the smallest buffer"
    )
    if isinstance(size, str):
        text = size.strip()
        if text.lower() in ("unlimited", "-1"):
            return UNLIMITED
        match = SIZE.fullmatch(text)
        unit = match and UNITS.get(match[2].lower())
        if not unit:
            raise refused
        whole, _, fraction = match[1].replace("_", "").partition(".")
        scale = 10 ** len(fraction)
        count, rest = divmod(int(whole + fraction) * unit, scale)  # exact: no detour over a float
        if rest:
            raise refused
        return count
    if isinstance(size, bool):
        raise refused
    try:
        count = operator.index(size)
    except TypeError:
        raise refused from None
    if count < UNLIMITED:
        raise refused
    return count


def resolve_limit(memory_limit: int | str | None) -> int:
    """The limit that a stream would run under: the one given, else the environment's, else 40 GB."""
    if memory_limit is not None:
        return parse_size(memory_limit)
    from_environment = os.environ.get(LIMIT_VARIABLE)
    if from_environment is None:
        return DEFAULT_MEMORY_LIMIT
    try:
        return parse_size(int(from_environment))  # the streamer reads a plain number there, no unit
    except ValueError:
        raise StreamingError(
            f"the environment variable {LIMIT_VARIABLE} is {from_environment!r}, which the streamer cannot "
            "read: unset it, or set it to a number of bytes (-1: no limit, 0: the smallest buffer)"
        ) from None


def resolve_concurrency(concurrency: int | None) -> int | None:
    """The number of reading threads to set for a stream; None leaves it to the environment, else to the streamer.

    Raises:
        StreamingError: a number below 1, or a value of the environment that the streamer would refuse as
            "Invalid request parameters".
    """
    if concurrency is not None:
        if isinstance(concurrency, bool) or operator.index(concurrency) < 1:
            raise StreamingError(f"concurrency={concurrency!r} is not a number of threads: give 1 or more, or None")
        return operator.index(concurrency)
    from_environment = os.environ.get(CONCURRENCY_VARIABLE)
    if from_environment is not None and not THREADS.fullmatch(from_environment):
        raise StreamingError(
            f"the environment variable {CONCURRENCY_VARIABLE} is {from_environment!r}, which is not a number of "
            "threads: unset it, or set it to 1 or more"
        )
    return None


def require_room(what: str, need: int, limit: int) -> None:
    """Refuse a limit below something that must fit the buffer as a whole."""
    if limit > SMALLEST and need > limit:
        raise StreamingError(
            f"{what} needs {need} bytes, the limit is {limit}: raise memory_limit to {need} or more, "
            "or pass 0 for the smallest buffer that works"
        )
