"""How much memory and time a room takes: N users log in, then run a lesson at the same moment.

    .venv/bin/python tests/deploy/measure_room.py 1 2 4 8

One line a number of users. Memory is proportional (Pss): pages that several processes share are divided among them.
Processor seconds hardly depend on what else the machine does; the other seconds do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

from room_client import Ran, User  # noqa: E402
from rooms import hub, open_room  # noqa: E402

LESSON = "notebooks/10__every_answer_is_bang.ipynb"
EVERY_SECONDS = 3


class Watch(threading.Thread):
    """Samples the memory of a room until it is told to stop; keeps the peak of the sum."""

    def __init__(self, room: hub.Room) -> None:
        super().__init__(daemon=True)
        self.room, self.enough = room, threading.Event()
        self.peak = {"all": 0.0, "hub": 0.0, "servers": 0.0, "kernels": 0.0}
        self.most_data = 0.0
        self.processor: dict[int, float] = {}  # seconds, by process

    def run(self) -> None:
        while not self.enough.wait(EVERY_SECONDS):
            self.look()
        self.look()

    def look(self) -> None:
        now = dict.fromkeys(self.peak, 0.0)
        for pid in hub.processes(self.room):
            mib = hub.proportional_kib(pid) / 1024
            now["all"] += mib
            now[kind_of(pid)] += mib
            self.most_data = max(self.most_data, data_mib(pid))
            self.processor[pid] = processor_seconds(pid)
        self.peak = max(self.peak, now, key=lambda each: each["all"])


def kind_of(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        command = b""
    return "kernels" if b"ipykernel" in command else "servers" if b"singleuser" in command else "hub"


def data_mib(pid: int) -> float:
    """What RLIMIT_DATA counts of a process, in MiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmData:")), 0.0)


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors, in it and in the system for it."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def one_round(room: hub.Room, words: str, users: int) -> tuple[float, list[Ran]]:
    """Everybody logs in at once, and when all are in everybody runs the lesson at once."""
    people = [User(room.url, f"user-{number}") for number in range(users)]
    started = time.monotonic()
    await asyncio.gather(*(one.log_in(words) for one in people))
    await asyncio.gather(*(one.start_server() for one in people))
    all_in = time.monotonic() - started
    ran = await asyncio.gather(*(one.run(LESSON, keep=True) for one in people))
    await asyncio.gather(*(one.http.aclose() for one in people))
    return all_in, list(ran)


def measure(users: int) -> str:
    with tempfile.TemporaryDirectory() as folder, open_room(Path(folder), users=users) as (room, words):
        load = os.getloadavg()[0]
        watch = Watch(room)
        watch.start()
        all_in, ran = asyncio.run(one_round(room, words, users))
        watch.enough.set()
        watch.join()
    seconds = sorted(each.seconds for each in ran)
    errors = sum(len(each.errors) for each in ran)
    share = {kind: mib / users for kind, mib in watch.peak.items()}
    return (
        f"{users:>5}  {load:>11.1f}  {all_in:>8.0f}  {median(seconds):>8.0f}  {seconds[-1]:>7.0f}  "
        f"{watch.peak['all']:>8.0f}  {watch.peak['hub']:>8.0f}  {share['servers']:>10.0f}  {share['kernels']:>10.0f}  "
        f"{watch.most_data:>8.0f}  {sum(watch.processor.values()) / users:>15.1f}  {errors:>6}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("users", type=int, nargs="+")
    print(
        "users  load before  all in s  median s  slowest  peak MiB   hub MiB  server MiB  kernel MiB  "
        "data MiB  processor s/user  errors"
    )
    for count in parser.parse_args().users:
        print(measure(count), flush=True)
