"""The real JupyterHub with its real proxy: people log in over HTTP and run a lesson as a browser does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

import rooms  # noqa: E402
from room_client import NotLetIn, Ran, User  # noqa: E402
from rooms import hub, settings  # noqa: E402

LESSON = "notebooks/10__every_answer_is_bang.ipynb"
SOLVED = "notebooks/solutions/10__every_answer_is_bang.ipynb"
RECORDED = json.loads((settings.ROOT / LESSON).read_text())
USERS = int(os.environ.get("GPTOSS_LAB_TEST_USERS", "3"))
NAMES = [f"user-{number}" for number in range(USERS)]
PROCESS_MIB = 2048
MIB = 2**20


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[settings.Room, str]]:
    """A room for two, and its passphrase."""
    with rooms.open_room(tmp_path_factory.mktemp("room"), users=2, process_mib=PROCESS_MIB) as room_and_words:
        yield room_and_words


async def everybody_in(people: list[User], words: str) -> None:
    await asyncio.gather(*(one.log_in(words) for one in people))
    await asyncio.gather(*(one.start_server() for one in people))


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that ended and that nobody has asked after yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def run_as(opened: tuple[settings.Room, str], name: str, *cells: str) -> Ran:
    """Run cells as one user of the room."""
    room, words = opened
    async with User(room.url, name) as one:
        await everybody_in([one], words)
        return await one.run_cells("notebooks/scratch.ipynb", list(cells))


def recorded_stdout() -> list[str | None]:
    """What each code cell of the lesson prints; None where it may differ by machine."""
    cells = [cell for cell in RECORDED["cells"] if cell["cell_type"] == "code"]
    texts: list[str | None] = []
    for cell in cells:
        streams = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream" and out["name"] == "stdout"]
        is_compared = "nbval-ignore-output" not in cell["metadata"].get("tags", [])
        texts.append("".join("".join(text) for text in streams) if is_compared else None)
    return texts


def assert_is_the_lesson(ran: Ran) -> None:
    """The lesson ran without an error and printed what is recorded in it."""
    assert ran.errors == []
    assert "' Paris.'\n" in ran.stdout and "'!!!!!!!!!!!!'\n" in ran.stdout
    recorded = recorded_stdout()
    assert len(ran.stdout) == len(recorded)
    assert [text for text, want in zip(ran.stdout, recorded, strict=True) if want is not None] == [
        want for want in recorded if want is not None
    ]
    assert ran.shown > 0


# ---- a workshop, from open to closed -----------------------------------------------------------------------


async def work(room: settings.Room, words: str) -> list[Ran]:
    people = [User(room.url, name) for name in NAMES]
    await everybody_in(people, words)
    ran = await asyncio.gather(*(one.run(LESSON, keep=True) for one in people))
    await people[0].save(LESSON, {**RECORDED, "cells": RECORDED["cells"][:1]})
    await asyncio.gather(*(one.http.aclose() for one in people))
    return list(ran)


async def cells_of_the_lesson(room: settings.Room, words: str, name: str) -> int:
    async with User(room.url, name) as one:
        await everybody_in([one], words)
        return len((await one.read(LESSON))["cells"])


def test_a_workshop_runs_closes_and_finds_its_work_again(tmp_path):
    with rooms.open_room(tmp_path, users=USERS) as (room, words):
        for ran in asyncio.run(work(room, words)):
            assert_is_the_lesson(ran)
        pid = hub.hub_pid(room)
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        # Hub, proxy and culler; for each user a server and the kernel that was left running.
        assert len(family) >= 3 + 2 * USERS
        assert {process.pid for process in family} <= set(hub.processes(room))

        assert rooms.command(room, "stop").returncode == 0
        assert [process for process in family if is_alive(process)] == []
        assert hub.processes(room) == []
        assert all(hub.is_free(port) for port in room.ports)

        assert rooms.start(room) == words
        # The first user saved a lesson of one cell; the others did not.
        assert asyncio.run(cells_of_the_lesson(room, words, NAMES[0])) == 1
        assert asyncio.run(cells_of_the_lesson(room, words, NAMES[-1])) == (len(RECORDED["cells"]) if USERS > 1 else 1)
        assert rooms.command(room, "stop").returncode == 0


# ---- who may come in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../user-0", "a/b", "-user", "9", "a" * 40, "ann.b", "räume", ""])
def test_a_name_that_is_no_folder_is_not_let_in(opened, name):
    room, words = opened
    with pytest.raises(NotLetIn):
        asyncio.run(User(room.url, name).log_in(words))


@pytest.mark.parametrize("change", [str.upper, lambda words: words[:-1], lambda words: "", lambda words: words + "a"])
def test_other_words_are_not_let_in(opened, change):
    room, words = opened
    with pytest.raises(NotLetIn):
        asyncio.run(User(room.url, "user-0").log_in(change(words)))


def test_the_passphrase_and_the_folders_are_for_the_room_alone(opened):
    room, words = opened
    assert (room.folder / "passphrase").stat().st_mode & 0o777 == 0o600
    assert room.folder.stat().st_mode & 0o777 == 0o700
    assert words == (room.folder / "passphrase").read_text().strip()


# ---- a user each -------------------------------------------------------------------------------------------


def test_a_user_has_an_own_copy_and_no_key_to_another_server(opened):
    room, words = opened

    async def visit() -> tuple[list[str], list[str], int]:
        async with User(room.url, "user-0") as first, User(room.url, "user-1") as second:
            await everybody_in([first, second], words)
            notebook = await first.read(LESSON)
            notebook["cells"][0]["source"] = "changed by the first"
            await first.save(LESSON, notebook)
            titles = [(await one.read(LESSON))["cells"][0]["source"] for one in (first, second)]
            with pytest.raises(httpx.HTTPStatusError) as fault:
                await second.ask("GET", f"contents/{LESSON}", of="user-0")
            files = [entry["name"] for entry in await second.read("notebooks")]
            return titles, files, fault.value.response.status_code

    titles, files, code = asyncio.run(visit())
    recorded = "".join(RECORDED["cells"][0]["source"])
    assert titles == ["changed by the first", recorded]
    assert code in (403, 404)
    assert {path.name for path in (settings.ROOT / "notebooks").glob("*.ipynb")} <= set(files)
    assert recorded == "".join(json.loads((settings.ROOT / LESSON).read_text())["cells"][0]["source"])


def test_a_kernel_is_at_home_with_the_user_and_knows_no_secret(opened):
    room, words = opened
    ask = "import os, sys; print(os.environ['HOME'], os.getcwd(), sys.prefix, sep='\\n')"
    where, variables = asyncio.run(run_as(opened, "user-0", ask, "print(dict(os.environ))")).stdout
    home = room.home / "user-0"
    assert where.splitlines() == [str(home), str(home / "notebooks"), sys.prefix]
    assert "CONFIGPROXY_AUTH_TOKEN" not in variables and words not in variables
    assert "'OMP_NUM_THREADS': '1'" in variables


def test_progress_is_kept_for_each_user(opened):
    room, words = opened
    solved = json.loads((settings.ROOT / SOLVED).read_text())["cells"]
    code = ["".join(cell["source"]) for cell in solved if cell["cell_type"] == "code"]
    first_check = next(number for number, source in enumerate(code) if source.startswith("check."))

    async def solve() -> Ran:
        async with User(room.url, "user-0") as first, User(room.url, "user-1") as second:
            await everybody_in([first, second], words)
            await second.run_cells(LESSON, ["pass"])
            return await first.run_cells(LESSON, code[: first_check + 1])

    assert asyncio.run(solve()).errors == []
    kept = room.home / "user-0/.local/state/gptoss-lab/progress.json"
    assert list(json.loads(kept.read_text())["passed"]) == ["10.1"]
    assert not (room.home / "user-1/.local/state/gptoss-lab").exists()


def test_a_terminal_opens_where_the_course_s_command_finds_the_user_s_lessons(opened):
    room, words = opened
    home = room.home / "user-1"

    async def open_terminal() -> list[str]:
        async with User(room.url, "user-1") as one:
            await everybody_in([one], words)
            terminal = await one.ask("POST", "terminals", {})
            at_home = [psutil.Process(pid).name() for pid in hub.processes(room) if folder_of(pid) == home]
            await one.ask("DELETE", f"terminals/{terminal['name']}")
            return at_home

    assert {"bash", "sh"} & set(asyncio.run(open_terminal()))
    assert (home / "notebooks" / "00__start_here.ipynb").exists()
    where = asyncio.run(run_as(opened, "user-1", "import shutil; print(shutil.which('gptoss-lab'))")).stdout
    assert where == [f"{Path(sys.prefix, 'bin', 'gptoss-lab')}\n"]


def folder_of(pid: int) -> Path | None:
    try:
        return Path(psutil.Process(pid).cwd())
    except psutil.Error:
        return None


# ---- limits ------------------------------------------------------------------------------------------------


def test_a_process_that_wants_too_much_gets_an_error_and_lives(opened):
    # The pages are never touched: without the limit this costs no memory either.
    too_much = f"block = bytearray({PROCESS_MIB * MIB})"
    ran = asyncio.run(run_as(opened, "user-0", too_much, f"print(len(bytearray({64 * MIB})))"))
    assert [error.split(":")[0] for error in ran.errors] == ["MemoryError"]
    assert ran.stdout[-1] == f"{64 * MIB}\n"


def test_the_system_would_end_a_kernel_before_the_hub(opened):
    room, _ = opened
    ask = "import os; print(open('/proc/self/oom_score_adj').read().strip(), os.nice(0))"
    ran = asyncio.run(run_as(opened, "user-0", ask))
    pid = hub.hub_pid(room)
    of_hub = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    assert ran.stdout == [f"500 {min(19, psutil.Process(pid).nice() + 5)}\n"]
    assert int(of_hub) < 500


def test_a_full_room_says_so(opened):
    room, words = opened

    async def come() -> None:
        async with (
            User(room.url, "user-0") as first,
            User(room.url, "user-1") as second,
            User(room.url, "late") as late,
        ):
            await everybody_in([first, second], words)
            await everybody_in([late], words)

    with pytest.raises(NotLetIn, match="late: the room is full"):
        asyncio.run(come())


def test_a_server_without_use_is_ended_and_the_room_stays_open(tmp_path):
    with rooms.open_room(tmp_path, idle_minutes=0.1) as (room, words):

        async def come() -> None:
            async with User(room.url, "user-0") as one:
                await everybody_in([one], words)

        def has_server() -> bool:
            commands = [Path(f"/proc/{pid}/cmdline") for pid in hub.processes(room)]
            return any(b"jupyterhub.singleuser" in path.read_bytes() for path in commands if path.exists())

        asyncio.run(come())
        assert has_server()
        assert hub.wait_until(lambda: not has_server(), 60)
        assert httpx.get(f"{room.url}/hub/health", trust_env=False).status_code == 200


# ---- opening and closing -----------------------------------------------------------------------------------


def test_a_room_is_not_opened_twice(opened):
    room, _ = opened
    again = rooms.command(room, "start")
    assert again.returncode == 1 and "is open already: room.py stop" in again.stderr
    assert "is open" in rooms.command(room, "status").stdout


def test_a_taken_port_is_said_and_nothing_stays_behind(opened, tmp_path):
    taken, _ = opened
    room = settings.Room(tmp_path, port=taken.port)
    refused = rooms.command(room, "start")
    assert refused.returncode == 1 and str(room.port) in refused.stderr
    assert hub.processes(room) == []
    assert httpx.get(f"{taken.url}/hub/health", trust_env=False).status_code == 200


def test_closing_ends_what_users_left_running_and_nothing_else(tmp_path):
    outside = subprocess.Popen(["sleep", "600"])
    try:
        with rooms.open_room(tmp_path) as (room, words):
            stray = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
            (printed,) = asyncio.run(run_as((room, words), "user-0", stray)).stdout
            process = psutil.Process(int(printed))
            assert process.name() == "sleep" and is_alive(process)
            assert rooms.command(room, "stop").returncode == 0
            assert not is_alive(process)
            assert outside.poll() is None
            closed = rooms.command(room, "stop")
            assert closed.returncode == 0 and "closed already" in closed.stdout
    finally:
        outside.kill()
        outside.wait()


def test_a_hub_that_was_killed_leaves_a_room_that_can_be_closed(tmp_path):
    with rooms.open_room(tmp_path) as (room, words):
        asyncio.run(run_as((room, words), "user-0", "pass"))
        os.kill(hub.hub_pid(room), 9)
        time.sleep(0.5)
        assert hub.processes(room), "the proxy or a server outlives the hub"
        assert rooms.command(room, "stop").returncode == 0
        assert hub.processes(room) == []
