"""Where a room lies and how large it may be. Python's standard library only.

A room is one JupyterHub on one server: a folder with its state and with the work of its users.
"""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONFIG = HERE / "jupyterhub_config.py"
PREFIX = "GPTOSS_LAB_ROOM_"
MIB = 2**20
# Measured: README.md, "How many". A kernel shares pages with the others; a lesson may want more than the usual 250.
SYSTEM_MIB = 1500  # for the operating system and its file cache
HUB_MIB = 200  # hub, proxy and culler
SERVER_MIB = 130
KERNEL_MIB = 350
OPEN_LESSONS = 2  # readers leave the last lesson open
# Names become folders and parts of addresses.
USERNAME = r"^[a-z][a-z0-9-]{0,30}$"


@dataclass(frozen=True)
class Room:
    """The settings of a room; each field but `folder` is a variable GPTOSS_LAB_ROOM_<FIELD>."""

    folder: Path  # GPTOSS_LAB_ROOM
    address: str = "127.0.0.1"
    port: int = 8000  # and the next two
    users: int = 0  # servers at once; 0: as many as memory holds
    process_mib: int = 4096  # most memory that one process of a user may ask for
    idle_minutes: float = 120.0  # a server is ended after that long without use
    cert: str = ""  # a PEM file; with `key` the room speaks https
    key: str = ""

    @property
    def home(self) -> Path:
        """The folder with a folder for each user."""
        return self.folder / "users"

    @property
    def ports(self) -> range:
        """People come to the first; the hub and the proxy's own interface are on the loopback only."""
        return range(self.port, self.port + 3)

    @property
    def url(self) -> str:
        """What the proxy listens on."""
        return f"{'https' if self.cert else 'http'}://{self.address}:{self.port}"

    def environment(self) -> dict[str, str]:
        """The room as variables: what `from_environment` reads."""
        rest = {PREFIX + each.name.upper(): str(getattr(self, each.name)) for each in fields(self)[1:]}
        return {"GPTOSS_LAB_ROOM": str(self.folder), **rest}


def from_environment(environment: Mapping[str, str] = os.environ) -> Room:
    """The room that the variables describe; its folder is ~/gptoss-lab-room if none is named.

    Raises ValueError for a number that is none, and for a certificate without a key.
    """
    folder = environment.get("GPTOSS_LAB_ROOM") or "~/gptoss-lab-room"
    values: dict[str, object] = {}
    for each in fields(Room)[1:]:
        text = environment.get(PREFIX + each.name.upper(), "")
        try:
            values[each.name] = type(each.default)(text) if text else each.default
        except ValueError:
            raise ValueError(f"{PREFIX}{each.name.upper()} is {text!r}: give a number") from None
    for name in ("cert", "key"):  # the hub runs in the room's folder, where a relative path means another file
        values[name] = str(Path(str(values[name])).expanduser().resolve()) if values[name] else ""
    room = Room(Path(folder).expanduser().resolve(), **values)
    if bool(room.cert) != bool(room.key):
        raise ValueError("https needs a certificate and its key: name both, --cert and --key")
    return room


def users_that_fit(total_mib: int) -> int:
    """How many users a server of `total_mib` of memory holds, each with OPEN_LESSONS kernels; at least one."""
    return max(1, (total_mib - SYSTEM_MIB - HUB_MIB) // (SERVER_MIB + OPEN_LESSONS * KERNEL_MIB))


def memory_mib() -> int:
    """The memory of this machine, or of the container that this process runs in if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        pass  # no limit: the file is missing or says "max"
    return total // MIB


def passphrase(room: Room) -> str:
    """The words that let people in: what room.folder/passphrase holds, made up if there is no such file."""
    path = room.folder / "passphrase"
    if not path.exists():
        room.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        syllables = ["".join(map(secrets.choice, ("bdfghklmnprstvwz", "aeiou"))) for _ in range(8)]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("-".join(a + b for a, b in zip(syllables[::2], syllables[1::2], strict=True)) + "\n")
    words = path.read_text().strip()
    if len(words) < 8:
        raise ValueError(f"{path} holds {len(words)} characters: a passphrase needs at least 8")
    return words


def limit_process(most_mib: int) -> None:
    """Run in the child, before a user's server starts: what it must not do to the room.

    A process that asks for more than `most_mib` gets a MemoryError. If memory runs out all the same, the system
    ends a user's process and not the hub. Hub and proxy get the processor first.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (most_mib * MIB, most_mib * MIB))
    Path("/proc/self/oom_score_adj").write_text("500")
    os.nice(5)
