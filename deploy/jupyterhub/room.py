"""Install, start and stop a room: JupyterHub on one server. Run it with the course's own Python.

    .venv/bin/python deploy/jupyterhub/room.py install
    .venv/bin/python deploy/jupyterhub/room.py start
    .venv/bin/python deploy/jupyterhub/room.py status
    .venv/bin/python deploy/jupyterhub/room.py stop

Options can also be given as variables, GPTOSS_LAB_ROOM for the folder and GPTOSS_LAB_ROOM_PORT and so on.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import fields, replace
from pathlib import Path

import settings
from node import OLDEST_NODE, has_node, npm_command, will_do, with_node
from processes import end_all, hub_pid, processes, proportional_kib, wait_until
from settings import CONFIG, HERE, ROOT, Room

NODE_PIN = HERE / "node.txt"  # Node.js itself, from the package index: 200 MB
PROXY = HERE / "node_modules/.bin/configurable-http-proxy"
START_SECONDS = 90
STOP_SECONDS = 60


class RoomError(Exception):
    """What stands in the way, and what to do about it."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    try:
        options = parse(arguments)
        options.command(options.room, options)
    except (RoomError, ValueError) as fault:
        print(f"room: {fault}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    room = settings.from_environment()
    parser = argparse.ArgumentParser(prog="room.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for command in (install, start, run, status, stop):
        each = commands.add_parser(command.__name__, help=command.__doc__.splitlines()[0])
        each.set_defaults(command=command)
        each.add_argument("--folder", type=lambda text: Path(text).expanduser().resolve(), default=room.folder)
        for field in fields(Room)[1:] if command in (start, run) else ():
            value = getattr(room, field.name)
            each.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=value)
        if command in (start, run):
            each.add_argument("--allow-root", action="store_true")
    options = parser.parse_args(arguments)
    given = {field.name: getattr(options, field.name) for field in fields(Room) if hasattr(options, field.name)}
    options.room = settings.from_environment(replace(room, **given).environment())
    return options


# ---- commands ----------------------------------------------------------------------------------------------


def install(room: Room, options: argparse.Namespace) -> None:
    """Put JupyterHub into the course's environment and its proxy beside this file."""
    if not (Path(sys.prefix) / "gptoss-lab.json").exists():
        raise RoomError(f"{sys.executable} is not the course's Python: run `make venv`, then use .venv/bin/python")
    install_pins(HERE / "requirements.txt")
    if not has_node(os.environ):
        print(f"room: no Node.js {OLDEST_NODE} or newer with npm on this machine; taking the one of {NODE_PIN.name}")
        install_pins(NODE_PIN)
    npm = [*npm_command(os.environ), "ci", "--omit=dev", "--no-audit", "--no-fund"]
    if subprocess.run(npm, cwd=HERE, env=with_node(os.environ)).returncode:
        raise RoomError("npm could not install the proxy: what it said stands above")
    print("room: installed. Next: room.py start")


def install_pins(pins: Path) -> None:
    """Install a file of pins as `make venv` does, with uv or pip."""
    if str(ROOT / "scripts") not in sys.path:
        sys.path.append(str(ROOT / "scripts"))
    from installer import Installer, SetupError

    try:
        Installer(Path(sys.prefix), pins).install("--no-deps", "-r", str(pins))
    except SetupError as fault:
        raise RoomError(str(fault)) from None


def start(room: Room, options: argparse.Namespace) -> None:
    """Start a room in the background and wait until people can log in."""
    check(room, options)
    log = room.folder / "hub.log"
    with log.open("ab") as output:
        hub = subprocess.Popen(
            hub_command(),
            cwd=room.folder,
            env=hub_environment(room),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    give_up = time.monotonic() + START_SECONDS
    while not answers(room):
        if hub.poll() is not None or time.monotonic() > give_up:
            end_all(room)
            tail = log.read_text(errors="replace").splitlines()[-15:]
            raise RoomError(f"JupyterHub did not start within {START_SECONDS} s; {log} ends:\n" + "\n".join(tail))
        time.sleep(0.2)
    print(f"room: {room.url} is open. Passphrase: {settings.passphrase(room)}")


def run(room: Room, options: argparse.Namespace) -> None:
    """Run a room in the foreground: for a service manager. SIGTERM ends it."""
    check(room, options)
    os.chdir(room.folder)
    os.execve(sys.executable, hub_command(), hub_environment(room))


def status(room: Room, options: argparse.Namespace) -> None:
    """Say whether a room is open, and how many processes and how much memory it has."""
    pids = processes(room)
    if not pids:
        print(f"room: {room.folder} is closed")
        return
    mib = sum(proportional_kib(pid) for pid in pids) // 1024
    print(f"room: {room.folder} is open: {len(pids)} processes, {mib} MiB, hub {hub_pid(room)}")


def stop(room: Room, options: argparse.Namespace) -> None:
    """End the hub, its proxy and every user's server. Work that was saved stays."""
    pid = hub_pid(room)
    if pid is None and not processes(room):
        print(f"room: {room.folder} is closed already")
        return
    if pid is not None:
        # The hub asks every server to end, and a server its kernels.
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: hub_pid(room) is None, STOP_SECONDS)
    left = end_all(room)
    if left:
        raise RoomError(f"processes {left} did not end: look at them with ps")
    print(f"room: closed. The work of the users lies in {room.home}")


# ---- starting ----------------------------------------------------------------------------------------------


def hub_command() -> list[str]:
    return [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)]


def hub_environment(room: Room) -> dict[str, str]:
    return {**with_node(os.environ), **room.environment()}


def check(room: Room, options: argparse.Namespace) -> None:
    """Raise RoomError, with a remedy, for what would keep the room from working."""
    if os.geteuid() == 0 and not options.allow_root:
        raise RoomError(
            "everybody in the room would be root: use an account made for the room, or say --allow-root in a container"
        )
    if importlib.util.find_spec("jupyterhub") is None or not PROXY.exists():
        raise RoomError("JupyterHub and its proxy are not installed: room.py install")
    if not will_do(os.environ):
        raise RoomError(f"no Node.js {OLDEST_NODE} or newer with npm: room.py install")
    if processes(room):
        raise RoomError(f"{room.folder} is open already: room.py stop")
    for port in room.ports:
        if not is_free(port):
            raise RoomError(f"port {port} is taken; a room needs {room.ports[0]} to {room.ports[-1]}: try --port")
    room.home.mkdir(parents=True, exist_ok=True)
    room.folder.chmod(0o700)
    settings.passphrase(room)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # A port that was closed a moment ago counts as free, as it does for the proxy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def answers(room: Room) -> bool:
    """Whether the hub answers through the proxy."""
    address = "127.0.0.1" if room.address in ("0.0.0.0", "") else room.address
    url = room.url.replace(f"//{room.address}:", f"//{address}:", 1) + "/hub/health"
    try:
        # The certificate names the server as people call it, not the loopback.
        with urllib.request.urlopen(url, timeout=5, context=ssl._create_unverified_context()) as reply:
            return reply.status == 200
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
