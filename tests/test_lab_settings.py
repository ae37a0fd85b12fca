"""What a fresh JupyterLab shows is settled in one file, for `make lab` and for the room on a server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "deploy" / "jupyterlab"
NOTIFICATION = "@jupyterlab/apputils-extension:notification"

# Stands in for `jupyter`: prints the defaults that JupyterLab would merge out of all of Jupyter's folders.
MERGED = f"""#!{sys.executable}
import json
from jupyter_server.services.config.manager import ConfigManager
print(json.dumps(ConfigManager(config_dir_name="labconfig").get("default_setting_overrides")))
"""


def defaults_of_make_lab(folder: Path, **variables: str) -> dict[str, dict[str, object]]:
    """Run the recipe of `make lab` for somebody who has never started JupyterLab; .venv is left alone."""
    (folder / "jupyter").write_text(MERGED)
    (folder / "jupyter").chmod(0o755)
    home = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    home |= {"HOME": str(folder / "home"), **variables}
    command = ["make", "--silent", "--old-file=venv", "lab", f"BIN={folder}"]
    done = subprocess.run(command, cwd=ROOT, env=home, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_lab_asks_nobody_about_news(tmp_path):
    assert defaults_of_make_lab(tmp_path)[NOTIFICATION] == {"fetchNews": "false", "checkForUpdates": False}


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_settings_of_one_s_own_stay(tmp_path):
    (tmp_path / "mine" / "labconfig").mkdir(parents=True)
    mine = {"@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Dark"}}
    (tmp_path / "mine" / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(mine))
    merged = defaults_of_make_lab(tmp_path, JUPYTER_CONFIG_PATH=str(tmp_path / "mine"))
    assert set(merged) == {NOTIFICATION, *mine} and mine.items() <= merged.items()


def test_there_is_one_such_file_and_the_room_reads_it():
    (file,) = (ROOT / "deploy").rglob("labconfig/*.json")
    assert file.parent.parent == SETTINGS
    room = (ROOT / "deploy" / "jupyterhub" / "jupyterhub_config.py").read_text()
    assert "{settings.ROOT / 'deploy' / 'jupyterlab'}" in room
    image = (ROOT / "deploy" / "jupyterhub" / "README.md").read_text()
    assert "/srv/gptoss-lab/deploy/jupyterlab\n" in image
