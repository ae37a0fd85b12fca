"""Run each of the six case files in a fork of its own, and print the process and the number. Run under `prove`."""

from __future__ import annotations

import os
import sys

from gptoss_lab.course.lessons.case_files_18 import open_case_files


def main(folder: str, limit: int) -> None:
    """Fork before each loader, so that one that is ended does not end the next."""
    for file in open_case_files(folder):
        pid = os.fork()
        if pid == 0:
            file.wrong(limit)
            os._exit(0)
        os.waitpid(pid, 0)
        print(pid, file.number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
