"""Run every loader of the zoo in a fork of its own; print the process and the loader. Run under `prove`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from settled import read_files, settled
from zoo import ROWS, PlannedParameters, expected

from gptoss_lab.weights.plan import plan


def main(folder: str, limit: int) -> None:
    files = read_files(Path(folder))
    for row in ROWS.values():
        pid = os.fork()
        if pid == 0:
            model = PlannedParameters(expected(row, files.stored), plan(files.path, limit))
            row.load(model, settled(files, limit))
            for tensor in model.tensors.values():
                tensor.clone()
            os._exit(0)
        os.waitpid(pid, 0)
        print(pid, row.name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
