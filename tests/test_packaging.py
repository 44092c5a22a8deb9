"""What is installed, locked and shipped, read from the files that say so."""

import ast
import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.config import ConfigError, load_config

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = ("gateway", "cache", "backends")


# The lock files


def lines(path: str) -> list[str]:
    """A requirements file without comments, a continued line as one."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def locked(path: str) -> dict[str, str]:
    """Name -> version of everything in a lock file."""
    pins = (re.match(r"([a-z0-9-]+)==(\S+)", line) for line in lines(path))
    return {pin[1]: pin[2] for pin in pins if pin}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


LOCKS = ["requirements/runtime.lock", "requirements/dev.lock"]


@pytest.mark.parametrize("path", [*LOCKS, "requirements/model.txt"])
def test_every_locked_line_has_a_version_and_a_hash(path: str) -> None:
    assert lines(path)
    for line in lines(path):
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+]+(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line


@pytest.mark.parametrize("path", LOCKS)
def test_locks_leave_torch_and_gpu_libraries_to_their_own_step(path: str) -> None:
    assert not [name for name in locked(path) if name.startswith(("torch", "nvidia", "triton", "cuda"))]


@pytest.mark.parametrize(("path", "extras"), [(LOCKS[0], ["local"]), (LOCKS[1], ["local", "dev"])])
def test_locks_hold_every_direct_dependency_in_an_allowed_version(path: str, extras: list[str]) -> None:
    pins = locked(path)
    for text in [*PROJECT["dependencies"], *(text for extra in extras for text in EXTRAS[extra])]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), text


def test_the_development_lock_has_the_versions_that_users_run() -> None:
    assert locked(LOCKS[0]).items() <= locked(LOCKS[1]).items()


def test_the_torch_step_finds_what_it_needs_already_locked() -> None:
    needs = [Requirement(text) for text in importlib.metadata.requires("torch") or []]
    here = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    gpu = ("nvidia", "triton", "cuda")  # come with the CUDA builds only
    assert {need.name for need in here if not need.name.startswith(gpu)} <= locked(LOCKS[0]).keys()


def imported(package: str) -> set[str]:
    """The top-level modules that the files of `package` import, wherever in the file."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_import_is_of_a_declared_dependency(package: str) -> None:
    providers = importlib.metadata.packages_distributions()
    declared = names([*PROJECT["dependencies"], *EXTRAS["local"], *lines("requirements/torch.txt")])
    for module in imported(package) - set(sys.stdlib_module_names) - set(PACKAGES):
        assert {canonicalize_name(name) for name in providers[module]} & declared, f"{module} is not in pyproject.toml"


# The project


def test_the_changelog_is_about_this_version_or_the_next() -> None:
    heading = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    assert heading[1] in ("Unreleased", PROJECT["version"])


def test_the_command_of_the_entry_point_starts() -> None:
    module, _, function = PROJECT["scripts"]["refrain"].partition(":")
    start = f"import sys; from {module} import {function}; sys.argv = ['refrain', '--help']; {function}()"
    shown = subprocess.run([sys.executable, "-c", start], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Usage: refrain" in shown.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_beside_the_code_is_installed(package: str) -> None:
    """A wheel has the modules and what `package-data` names: a page without its scripts is found by users only."""
    folder = ROOT / package
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {path for pattern in patterns.get(package, ()) for path in folder.glob(pattern)}
    beside = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert {path.relative_to(ROOT).as_posix() for path in beside - installed} == set()


def test_what_others_wrote_is_there_with_its_licence() -> None:
    vendored = ROOT / "gateway/dashboard/static/vendor"
    for path in vendored.glob("*.js"):
        assert "MIT" in (vendored / f"{path.name.partition('.')[0]}.LICENSE").read_text(), path.name


@pytest.mark.parametrize("module", [*PACKAGES, "gateway.cli"])
def test_importing_a_package_loads_no_torch(module: str) -> None:
    heavy = f"import sys, {module}; print(sorted(sys.modules.keys() & {{'torch', 'transformers'}}))"
    shown = subprocess.run([sys.executable, "-c", heavy], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


# The container


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest of its line)."""
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines("Dockerfile"))]


def instructions(name: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == name]


def copied() -> Iterator[str]:
    """What the Dockerfile copies from this repository."""
    for rest in instructions("COPY"):
        if not rest.startswith("--from="):
            yield from rest.split()[:-1]


def gateway_service() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["gateway"]
    return service


def test_the_dockerfile_copies_what_exists_and_the_context_lets_it_in() -> None:
    admitted = {line.removeprefix("!").rstrip("/") for line in lines(".dockerignore") if line.startswith("!")}
    for path in copied():
        assert (ROOT / path).exists(), path
        assert any(Path(path).is_relative_to(entry) for entry in admitted), f"{path} is kept out by .dockerignore"
    assert {"requirements/", *(f"{package}/" for package in PACKAGES)} <= set(copied())


def test_the_dockerfile_reads_only_requirement_files_that_exist() -> None:
    used = re.findall(r"requirements/[\w.-]+", "\n".join(instructions("RUN")))
    assert used
    assert all((ROOT / path).is_file() for path in used)
    assert "requirements/dev.lock" not in used


def test_the_base_image_is_pinned_to_a_release() -> None:
    for rest in instructions("FROM"):
        assert re.match(r"python:3\.11\.\d+-slim-\w+( |$)", rest), rest


def test_the_last_stage_runs_as_an_ordinary_user() -> None:
    stage = dockerfile()[[word for word, _ in dockerfile()].index("FROM", 1) :]
    user = [rest for word, rest in stage if word == "USER"]
    assert user
    assert not re.match(r"root\b|0\b", user[-1])
    assert [rest for word, rest in stage if word == "CMD"] == [
        '["refrain", "serve", "--config", "/etc/refrain/refrain.yaml"]'
    ]


def test_the_health_check_asks_healthz_with_python() -> None:
    (check,) = instructions("HEALTHCHECK")
    command = yaml.safe_load(check[check.index("[") :])
    assert command[0] == "python"
    ast.parse(command[-1])
    assert "/healthz" in command[-1]


def test_compose_requires_a_key_and_listens_on_loopback_only() -> None:
    service = gateway_service()
    assert service["environment"]["REFRAIN_KEY"].startswith("${REFRAIN_KEY:?")
    assert service["ports"] == ["127.0.0.1:8080:8080"]


def test_compose_gives_the_container_no_more_than_it_needs() -> None:
    service = gateway_service()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service


def test_compose_mounts_the_volume_that_the_image_writes_to() -> None:
    (volume,) = gateway_service()["volumes"]
    name, path = volume.split(":")
    assert name in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["volumes"]
    assert instructions("VOLUME") == [path]
    environment = dict(word.split("=", 1) for rest in instructions("ENV") for word in shlex.split(rest))
    config = load_config(ROOT / "examples/docker/refrain.yaml", {"REFRAIN_KEY": "k" * 64})
    assert environment["XDG_CACHE_HOME"].startswith(f"{path}/")
    assert config.store.url.startswith(f"sqlite:///{path}/")


def test_the_container_asks_everybody_for_the_key() -> None:
    config = load_config(ROOT / "examples/docker/refrain.yaml", {"REFRAIN_KEY": "k" * 64})
    (key,) = config.auth.keys
    assert config.auth.required
    assert key.key is not None
    assert key.key.get_secret_value() == "k" * 64
    assert (config.server.host, str(config.server.port)) == ("0.0.0.0", *instructions("EXPOSE"))


def test_the_container_does_not_start_without_the_key() -> None:
    with pytest.raises(ConfigError, match="REFRAIN_KEY is not set"):
        load_config(ROOT / "examples/docker/refrain.yaml", {})
