"""JupyterHub for a room on one server: a class passphrase, a folder a user, the course's own environment.

`room.py` starts it. By hand: GPTOSS_LAB_ROOM=folder .venv/bin/jupyterhub -f deploy/jupyterhub/jupyterhub_config.py
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from jupyterhub.spawner import SimpleLocalProcessSpawner

sys.path.insert(0, str(Path(__file__).resolve().parent))

import settings  # noqa: E402

room = settings.from_environment()
BIN = Path(sys.prefix) / "bin"


class RoomSpawner(SimpleLocalProcessSpawner):
    """A user's server as a local process with limits, on the user's own copy of the lessons."""

    def make_preexec_fn(self, name):
        go_home = super().make_preexec_fn(name)

        def prepare():
            go_home()
            settings.limit_process(room.process_mib)

        return prepare


def copy_lessons(spawner: RoomSpawner) -> None:
    """Give a user the lessons that they do not have yet; what they have stays as it is."""
    home = Path(spawner.home_dir)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = settings.ROOT / "notebooks"
    for path in sorted(source.rglob("*")):
        target = home / "notebooks" / path.relative_to(source)
        if path.is_file() and ".ipynb_checkpoints" not in path.parts and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{target.name}.part")
            shutil.copyfile(path, beside)
            beside.replace(target)


c = get_config()  # noqa: F821  (JupyterHub hands it in)

# ---- the hub and its proxy
c.JupyterHub.bind_url = room.url
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = room.cert, room.key
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{room.ports[1]}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{room.ports[2]}"
c.ConfigurableHTTPProxy.command = [str(settings.HERE / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(room.folder / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{room.folder / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(room.folder / "cookie_secret")
c.JupyterHub.template_vars = {
    "announcement_login": "Choose a name: small letters, digits and hyphens, a letter first. "
    "The password is the passphrase of the room. Come again with the same name to find your work."
}

# ---- who may come in
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = settings.passphrase(room)
c.Authenticator.allow_all = True
c.Authenticator.username_pattern = settings.USERNAME

# ---- a user's server
c.JupyterHub.spawner_class = RoomSpawner
c.SimpleLocalProcessSpawner.home_dir_template = str(room.home / "{username}")
c.Spawner.pre_spawn_hook = copy_lessons
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
# As in the course itself: a terminal opens in the folder that holds notebooks/, where gptoss-lab looks for them.
c.Spawner.notebook_dir = str(room.home / "{username}")
c.Spawner.default_url = "/lab/tree/notebooks/00__start_here.ipynb"
c.Spawner.environment = {
    "GPTOSS_LAB_ROOM": str(room.folder),  # by this room.py finds what belongs to the room
    # What a server does, then what JupyterLab shows; the second is the same as in `make lab`.
    "JUPYTER_CONFIG_PATH": f"{settings.HERE / 'jupyter'}{os.pathsep}{settings.ROOT / 'deploy' / 'jupyterlab'}",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # keeps a warning of the debugger's out of the lessons
}
if os.geteuid() == 0:
    c.Spawner.args = ["--allow-root"]

# ---- limits
c.JupyterHub.active_server_limit = room.users or settings.users_that_fit(settings.memory_mib())
# Everybody comes at the same minute. A throttle would show them an error; so they wait, and the bar moves.
c.JupyterHub.concurrent_spawn_limit = 0
c.Spawner.start_timeout = c.Spawner.http_timeout = 300
idle_seconds = round(60 * room.idle_minutes)
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "environment": {"GPTOSS_LAB_ROOM": str(room.folder)},
        "command": [sys.executable, "-m", "jupyterhub_idle_culler"]
        + [f"--timeout={idle_seconds}", f"--cull-every={max(1, min(300, idle_seconds // 4))}"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "services": ["idle-culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    }
]
