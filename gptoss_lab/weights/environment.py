"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def restored(names: Iterable[str]) -> Iterator[None]:
    """At the end of a `with` block, give variables of this process back what they held, or unset them."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
