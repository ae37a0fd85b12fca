"""`python -m gptoss_lab.weights.borrow COMMAND...`: run a Python command under `prove`, and say what it read late."""

from __future__ import annotations

import sys

from gptoss_lab.weights.borrow.proving import prove

USAGE = "usage: python -m gptoss_lab.weights.borrow COMMAND...   (what follows `python`: loader.py, -m pytest tests)"


def main(command: list[str]) -> int:
    """Run the command; returns its exit code, or 1 if it ended well by itself and still something was read late."""
    if not command or command[0] in ("-h", "--help"):
        print(USAGE, file=sys.stderr)
        return 0 if command else 2
    proof = prove(command, capture=False)
    print(proof, file=sys.stderr)
    ended_by_signal = proof.returncode < 0
    return (128 - proof.returncode if ended_by_signal else proof.returncode) or int(bool(proof.late_reads))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
