"""A real JupyterLab for the browser tests: isolated, on a free loopback port, ended with the tests."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 90
WIDGETS_EXTENSION = "@jupyter-widgets/jupyterlab-manager"
PR_SET_PDEATHSIG = 1

DEFAULTS = REPOSITORY / "deploy" / "jupyterlab"  # as in `make lab`: no prompt about news
SETTINGS = {
    "apputils-extension/notification": {"doNotDisturbMode": True},
    "apputils-extension/themes": {"adaptive-theme": False},
    "docmanager-extension/plugin": {"autosave": False},
    # Every cell is in the page, so that pictures show the whole lesson.
    "notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
}


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: `root` is the folder it serves."""

    url: str
    token: str
    root: Path
    log: Path

    def ask(self, method: str, path: str) -> Any:
        """Call the server's REST API and return what its JSON holds, None where there is none."""
        request = urllib.request.Request(f"{self.url}/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=30) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def sessions(self) -> list[dict[str, Any]]:
        return self.ask("GET", "api/sessions")

    def end_sessions(self) -> None:
        """End every kernel, so that the next lesson has the machine for itself."""
        for session in self.sessions():
            self.ask("DELETE", f"api/sessions/{session['id']}")

    def page_url(self, path: str) -> str:
        """The address of one notebook, alone on the page."""
        query = urllib.parse.urlencode({"token": self.token, "reset": ""})
        return f"{self.url}/doc/tree/{urllib.parse.quote(path)}?{query}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with_parent() -> None:
    """Let the server end when the tests are killed; kernels watch the server themselves."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def isolated_environment(folder: Path, without_widgets: bool) -> dict[str, str]:
    """Settings, kernels and history of the user play no part."""
    config = folder / "config"
    for name, values in SETTINGS.items():
        target = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(values), encoding="utf-8")
    (config / "labconfig").mkdir(parents=True, exist_ok=True)
    disabled = {WIDGETS_EXTENSION: True} if without_widgets else {}
    (config / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    environment = dict(os.environ)
    for name in ("PYTEST_CURRENT_TEST", "MPLBACKEND", "JUPYTER_PATH"):
        environment.pop(name, None)
    environment.update(
        JUPYTER_CONFIG_DIR=str(config),
        JUPYTER_CONFIG_PATH=str(DEFAULTS),
        JUPYTER_DATA_DIR=str(folder / "data"),
        JUPYTER_RUNTIME_DIR=str(folder / "runtime"),
        JUPYTERLAB_SETTINGS_DIR=str(folder / "settings"),
        JUPYTERLAB_WORKSPACES_DIR=str(folder / "workspaces"),
        IPYTHONDIR=str(folder / "ipython"),
        PYDEVD_DISABLE_FILE_VALIDATION="1",
        PYTHONPATH=os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")])),
    )
    return environment


@contextmanager
def running_lab(folder: Path, notebooks: Path | None = None, *, without_widgets: bool = False) -> Iterator[Lab]:
    """Serve a copy of `notebooks` from `folder`/served until the block ends."""
    root, log = folder / "served", folder / "jupyterlab.log"
    if notebooks is None:
        root.mkdir(parents=True)
    else:
        shutil.copytree(notebooks, root, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            cwd=root,
            env=isolated_environment(folder, without_widgets),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    lab = Lab(f"http://127.0.0.1:{port}", token, root, log)
    try:
        wait_until_up(lab, server)
        yield lab
    finally:
        end(server)


def wait_until_up(lab: Lab, server: subprocess.Popen) -> None:
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up and server.poll() is None:
        try:
            lab.ask("GET", "api/status")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    tail = lab.log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"JupyterLab did not start within {START_SECONDS} s:\n{tail}")


def end(server: subprocess.Popen) -> None:
    """Ask the server to end, which ends its kernels; after ten seconds end the whole group."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)
