"""What a browser does in a room: log in, wait for the server, run a notebook's cells over the websocket."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

START_SECONDS = 240
CELL_SECONDS = 300


class NotLetIn(Exception):
    """The login page came back."""


@dataclass
class Ran:
    """What the cells of a notebook came to: text to stdout of each, and the errors."""

    stdout: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    shown: int = 0  # figures, tables and widgets
    seconds: float = 0.0


class User:
    """One person with a browser of their own."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.http = httpx.AsyncClient(base_url=url, follow_redirects=True, timeout=120, trust_env=False)

    async def __aenter__(self) -> User:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    def cookie(self, name: str, path: str) -> str:
        """A cookie by name; hub and server have one `_xsrf` each."""
        return next((each.value or "" for each in self.http.cookies.jar if (each.name, each.path) == (name, path)), "")

    async def log_in(self, passphrase: str) -> None:
        """Fill in the form; raises NotLetIn if it comes back."""
        await self.http.get("/hub/login")
        form = {"username": self.name, "password": passphrase, "_xsrf": self.cookie("_xsrf", "/hub/")}
        # Only the answer to the form is of interest: /hub/home starts no server.
        reply = await self.http.post("/hub/login?" + urlencode({"next": "/hub/home"}), data=form)
        if reply.url.path != "/hub/home":
            raise NotLetIn(f"{self.name}: {reply.status_code} at {reply.url.path}")

    async def start_server(self) -> None:
        """Open the spawn page and wait, as the page does, until the lab answers."""
        give_up = time.monotonic() + START_SECONDS
        reply = await self.http.get("/hub/spawn")
        while time.monotonic() < give_up:
            if reply.status_code == 200 and reply.url.path.startswith(f"/user/{self.name}/"):
                return
            if reply.status_code == 429 and "Active user limit exceeded" in reply.text:
                raise NotLetIn(f"{self.name}: the room is full")
            await asyncio.sleep(1)
            reply = await self.http.get(f"/user/{self.name}/lab")
        raise TimeoutError(f"{self.name}: no server after {START_SECONDS} s, {reply.status_code} at {reply.url}")

    async def ask(self, method: str, path: str, body: Any = None, *, of: str = "") -> Any:
        """Call the REST API of one's own server, or of the server of another user."""
        base = f"/user/{of or self.name}/"
        headers = {"X-XSRFToken": self.cookie("_xsrf", f"/user/{self.name}/")}
        reply = await self.http.request(method, f"{base}api/{path}", json=body, headers=headers)
        reply.raise_for_status()
        return reply.json() if reply.content else None

    async def read(self, path: str) -> dict[str, Any]:
        return (await self.ask("GET", f"contents/{path}"))["content"]

    async def save(self, path: str, notebook: dict[str, Any]) -> None:
        body = {"type": "notebook", "format": "json", "content": notebook}
        await self.ask("PUT", f"contents/{path}", body)

    async def run(self, path: str, *, keep: bool = False) -> Ran:
        """Run every code cell of a notebook on a new kernel."""
        notebook = await self.read(path)
        cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        return await self.run_cells(path, cells, keep=keep)

    async def run_cells(self, path: str, cells: list[str], *, keep: bool = False) -> Ran:
        """Run `cells` in a session for the notebook at `path`; `keep` leaves its kernel alive."""
        started = time.monotonic()
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        session = await self.ask("POST", "sessions", body)
        socket = await self.connect(session["kernel"]["id"])
        ran = Ran()
        try:
            for source in cells:
                await asyncio.wait_for(run_cell(socket, source, ran), CELL_SECONDS)
        finally:
            socket.close()
            if not keep:
                await self.ask("DELETE", f"sessions/{session['id']}")
        ran.seconds = time.monotonic() - started
        return ran

    async def connect(self, kernel: str) -> Any:
        address = f"{self.url.replace('http', 'ws', 1)}/user/{self.name}/api/kernels/{kernel}/channels"
        cookies = "; ".join(
            f"{each.name}={each.value}"
            for each in self.http.cookies.jar
            if each.path in ("/", f"/user/{self.name}", f"/user/{self.name}/")
        )
        headers = {"Cookie": cookies, "Origin": self.url}
        request = HTTPRequest(address, headers=headers, connect_timeout=120, request_timeout=120)
        return await websocket_connect(request, max_message_size=2**27)


async def run_cell(socket: Any, source: str, ran: Ran) -> None:
    """Send one cell and collect what it shows until the kernel is idle and has replied."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "",
        "version": "5.3",
    }
    content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}, "stop_on_error": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    await socket.write_message(json.dumps(message))
    waiting_for = {"idle", "reply"}
    stdout = ""
    while waiting_for:
        text = await socket.read_message()
        if text is None:
            raise ConnectionError(f"the kernel went away in: {source[:60]}")
        answer = json.loads(text)
        if answer["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        kind, content = answer["header"]["msg_type"], answer["content"]
        if kind == "stream" and content["name"] == "stdout":
            stdout += content["text"]
        elif kind == "error":
            ran.errors.append(f"{content['ename']}: {content['evalue']}")
        elif kind in ("display_data", "execute_result"):
            ran.shown += 1
        elif kind == "status" and content["execution_state"] == "idle":
            waiting_for.discard("idle")
        elif kind == "execute_reply":
            waiting_for.discard("reply")
    ran.stdout.append(stdout)
