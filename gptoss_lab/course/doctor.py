"""Say whether this machine can run the course: one line a check, with the command that mends what is wrong.

The report can be copied into an issue: folders, the user's name and the machine's name are taken out.
"""

from __future__ import annotations

import getpass
import re
import socket
import sys

from gptoss_lab.course import doctor_checks, doctor_kernels
from gptoss_lab.course.doctor_checks import FAIL, WARN, Finding
from gptoss_lab.course.doctor_facts import Facts, gather

LONGEST = 200
CHECKS = (
    doctor_checks.check_python,
    doctor_checks.check_system,
    doctor_checks.check_torch,
    doctor_checks.check_device,
    doctor_kernels.check_triton,
    doctor_kernels.check_interpreter,
    doctor_kernels.check_kernels,
    doctor_kernels.check_streamer,
    doctor_kernels.check_newer_streamer,
    doctor_kernels.check_memory_limit,
    doctor_kernels.check_concurrency,
    doctor_checks.check_widgets,
    doctor_checks.check_others,
    doctor_checks.check_memory,
    doctor_checks.check_disk,
    doctor_checks.check_data,
)


def run_checks(facts: Facts | None = None) -> list[Finding]:
    """Run every check over `facts`, gathered here if not given. Never raises."""
    facts = gather() if facts is None else facts
    findings = []
    for check in CHECKS:
        name = check.__name__.replace("check_", "")
        try:
            findings.append(check(facts))
        except Exception as fault:  # a fault of the doctor is a finding too
            found = f"the check itself failed: {type(fault).__name__}: {fault}"
            findings.append(Finding(FAIL, name, found, "report it with this line"))
    return findings


def describe(finding: Finding) -> str:
    """One line: status, check, what was found and, behind an arrow, what mends it."""
    line = f"{finding.status:<5} {finding.check:<17} {make_public(finding.found)}"
    return f"{line} -> {finding.mend}" if finding.mend else line


def make_public(text: str) -> str:
    """`text` on one line, shortened, without folders and without the names of user and machine."""
    text = re.sub(r"(?<![\w:/])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\":,;]+[/\\])+", "", " ".join(text.split()))
    for name in private_names():
        text = re.sub(rf"\b{re.escape(name)}\b", "...", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def private_names() -> list[str]:
    """The user's and the machine's name, where they are long enough to tell anything."""
    names = []
    for ask in (getpass.getuser, socket.gethostname):
        try:
            names.append(ask())
        except Exception:
            continue
    return [name for name in names if len(name) > 2 and name not in ("root", "localhost")]


def main() -> int:
    """Print the report; 1 if a check failed, else 0."""
    findings = run_checks()
    for finding in findings:
        print(describe(finding))
    failed, warned = (sum(finding.status == status for finding in findings) for status in (FAIL, WARN))
    print(f"{len(findings)} checks: {failed} failed, {warned} warned")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
