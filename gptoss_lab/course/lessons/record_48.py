"""The record of `48__one_launch`: times of the ways to a routing, taken on a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gptoss_lab.course.lessons.draw_42 import WAY_NAMES as OLD_NAMES
from gptoss_lab.course.lessons.draw_42 import place, read_medians
from gptoss_lab.course.lessons.waits_48 import NINE
from gptoss_lab.moe.fused_routing import TWO_LAUNCHES, make_plan

FILE = "one_launch.json"
RECORD_IT = f"python benchmarks/routing.py --out data/h200/{FILE} --ways rebuild reuse route --inside 20"
WAY_NAMES = OLD_NAMES | {"route": "route"}


@dataclass(frozen=True)
class Record:
    """Recorded medians in microseconds by (tokens, experts, way, mode), and where they were taken.

    Ways are those of `WAY_NAMES`; modes are "graph" and "eager".
    """

    medians: Mapping[tuple[int, int, str, str], float]
    where: str

    def tokens(self) -> list[int]:
        return sorted({size[0] for size in self.medians})

    def experts(self) -> list[int]:
        return sorted({size[1] for size in self.medians})

    def ways(self) -> list[str]:
        """The recorded ways, in the order of `WAY_NAMES`."""
        return [way for way in WAY_NAMES if any(size[2] == way for size in self.medians)]


def read_record(folder: Path) -> Record | None:
    """Read `one_launch.json` in `folder`. Without one, None, and a line that says how to take it."""
    path = folder / FILE
    if not path.exists():
        print(f"There is no record {folder.name}/{FILE}. On a GPU: {RECORD_IT}")
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    legacy = (record.get("legacy") or {}).get("provenance")
    other = f" 3.5.1 under triton {legacy['versions']['triton']}." if legacy else ""
    where = f"Recorded on {place(record['provenance'])}.{other} Medians, topk included."
    return Record(read_medians(record), where)


@dataclass(frozen=True)
class Line:
    """Recorded microseconds at one size, and how many launches `route` takes there."""

    tokens: int
    launches: int
    route_us: float
    reuse_us: float
    legacy_us: float


def compare(record: Record, experts: int, mode: str = "graph") -> list[Line]:
    """Return the times of `route`, `reuse` and 3.5.1's `routing()` at every number of tokens that has all three."""
    lines = []
    for tokens in record.tokens():
        times = [record.medians.get((tokens, experts, way, mode)) for way in ("route", "reuse", "legacy")]
        if None not in times:
            lines.append(Line(tokens, count_launches(tokens, experts), *times))
    return lines


def count_launches(tokens: int, experts: int, k: int = 4) -> int:
    """Return how many launches `route` takes for bfloat16 logits; above `TWO_LAUNCHES` tokens it calls `reuse`."""
    return len(NINE) if tokens > TWO_LAUNCHES else make_plan(tokens, experts, k, torch.bfloat16).launches
