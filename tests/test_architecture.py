"""The shape that DESIGN 3 promises, and what must not occur anywhere in the tree."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "cache", "backends")
OURS = [*PACKAGES, "benchmarks", "scripts", "examples", "tests"]
MAX_LINES = 400

FILES = sorted(
    path for folder in OURS for path in (ROOT / folder).rglob("*.py") if not {"node_modules", ".venv"} & set(path.parts)
)
RUN = [path for path in FILES if not path.is_relative_to(ROOT / "tests")]  # a test may make a hostile value
SHIPPED = [path for path in FILES if path.relative_to(ROOT).parts[0] in PACKAGES]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, relative ones made absolute."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_packages(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imports(path)}


def calls(path: Path) -> Iterator[str]:
    """What a file calls, as it is written: `yaml.load`, `eval`."""
    return (ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def test_there_is_something_to_look_at() -> None:
    assert len(SHIPPED) > 60
    assert {path.relative_to(ROOT).parts[0] for path in SHIPPED} == set(PACKAGES)
    assert "cache.entry.Entry" in set(imports(ROOT / "cache/exact.py"))


@pytest.mark.parametrize(
    ("package", "others"), [("cache", {"gateway", "backends"}), ("backends", {"gateway", "cache"})]
)
def test_arrows_point_one_way(package: str, others: set[str]) -> None:
    for path in SHIPPED:
        if path.relative_to(ROOT).parts[0] == package:
            assert not imported_packages(path) & others, name(path)


def test_the_cache_is_usable_alone() -> None:
    """It knows no HTTP: an application can use it without any of the gateway's libraries."""
    web = {"fastapi", "starlette", "uvicorn", "httpx", "aiohttp", "pydantic"}
    for path in (ROOT / "cache").rglob("*.py"):
        assert not imported_packages(path) & web, name(path)


def test_nothing_shipped_imports_tests_or_benchmarks() -> None:
    for path in SHIPPED:
        assert not imported_packages(path) & {"tests", "pytest", "hypothesis", "benchmarks"}, name(path)


def test_the_import_contract_is_kept() -> None:
    """The contract of pyproject.toml, by import-linter, which sees chains of imports as well."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"])
def test_nothing_is_read_that_could_run_code(module: str) -> None:
    for path in RUN:
        assert module not in imported_packages(path), name(path)


def test_no_text_is_run_as_code() -> None:
    forbidden = {
        "eval",
        "exec",
        "compile",
        "__import__",
        "yaml.load",
        "yaml.full_load",
        "yaml.unsafe_load",
        "yaml.load_all",
    }
    forbidden |= {"torch.load", "os.system", "os.popen", "tempfile.mktemp"}
    for path in RUN:
        assert not forbidden & set(calls(path)), name(path)


def test_yaml_is_read_by_a_safe_loader_only() -> None:
    unsafe = {"yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader", "yaml.CLoader"}
    for path in SHIPPED:
        assert not unsafe & {ast.unparse(n) for n in ast.walk(tree(path)) if isinstance(n, ast.Attribute)}, name(path)


def test_no_shell_runs_what_we_start() -> None:
    for path in SHIPPED:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                assert isinstance(node.value, ast.Constant), name(path)
                assert node.value.value is False, name(path)
        assert not {"asyncio.create_subprocess_shell", "create_subprocess_shell"} & set(calls(path)), name(path)


def test_secrets_and_ids_do_not_come_from_random() -> None:
    """`random` can be foretold from its output. What must not be guessed comes from `secrets`."""
    for path in SHIPPED:
        if path.relative_to(ROOT).parts[0] != "backends":  # a sampler may draw tokens
            assert "random" not in imported_packages(path), name(path)
            assert "numpy.random" not in {module[:12] for module in imports(path)}, name(path)


def test_certificates_are_checked() -> None:
    for path in SHIPPED:
        text = path.read_text()
        assert "_create_unverified_context" not in text, name(path)
        assert "CERT_NONE" not in text, name(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg in ("verify", "verify_ssl", "ssl"):
                assert not (isinstance(node.value, ast.Constant) and node.value.value is False), name(path)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("gateway.cli", {"torch", "transformers", "fastapi", "numpy", "uvicorn", "aiohttp"}),
        ("gateway.app", {"torch", "transformers", "faiss", "sentence_transformers"}),
        ("cache.exact", {"torch", "fastapi", "httpx", "pydantic", "sqlite3"}),
        ("backends.remote", {"torch", "transformers", "fastapi", "pydantic"}),
    ],
)
def test_importing_loads_only_what_is_needed(module: str, heavy: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted(sys.modules.keys() & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_module_is_too_long_to_read() -> None:
    long = {name(path): lines for path in RUN if (lines := len(path.read_text().splitlines())) > MAX_LINES}
    assert long == {}


def test_every_shipped_module_says_what_it_is_for() -> None:
    for path in SHIPPED:
        if path.read_text().strip() and path.name != "__main__.py":
            assert ast.get_docstring(tree(path)), name(path)
