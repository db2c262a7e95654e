"""The shape of the project: layers, sizes, names, exit codes, dependencies."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import rmqtool
from rmqtool import errors
from rmqtool.commands import COMMANDS
from rmqtool.errors import EXIT_STATUS
from rmqtool.lazy_pattern import pattern
from tests import ROOT
from tests.support.programs import PATIENCE_S

FOLDERS = {
    "rmqtool": ROOT / "rmqtool",
    "rmqtool.formats": ROOT / "formats",
    "rmqtool.commands": ROOT / "commands",
}
# A room imports only rooms of lower rank, inside functions too; rooms of one rank do not know each other.
RANKS = {
    "rmqtool.errors": 0,
    "rmqtool.lazy_dataclass": 0,
    "rmqtool.lazy_pattern": 0,
    "rmqtool.command_line": 1,
    "rmqtool.compile_notice": 1,
    "rmqtool.near_names": 1,
    "rmqtool.problems": 1,
    "rmqtool.times": 1,
    "rmqtool.sizes": 1,
    "rmqtool.findings": 2,
    "rmqtool.formats": 2,
    "rmqtool.storage": 3,
    "rmqtool.log": 4,
    "rmqtool.queue": 5,
    "rmqtool.index": 5,
    "rmqtool.message": 6,
    "rmqtool.read": 7,
    "rmqtool.write": 8,
    "rmqtool.check": 9,
    "rmqtool.broker": 10,
    "rmqtool.repair": 11,
    "rmqtool.report": 12,
    "rmqtool.net": 13,
    "rmqtool.spark": 13,
    "rmqtool.terminal": 13,
    "rmqtool.table": 14,
    "rmqtool.page": 14,
    "rmqtool.table_columns": 15,
    "rmqtool.output": 16,
    "rmqtool.commands": 17,
    "rmqtool.cli": 18,
    "rmqtool.manpages": 19,
    "rmqtool.__main__": 19,
}
ROOMS = [name for name, rank in RANKS.items() if 3 <= rank <= 13 and name != "rmqtool.terminal"]
IMPURE = {
    "io",
    "logging",
    "mmap",
    "os",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "time",
}
# Beside the commands: what several of them use.
SHARED_BY_COMMANDS = {
    "__init__",
    "groups",
    "options",
    "other_words",
    "changes",
    "field_names",
    "finding_report",
    "interrupts",
    "guide",
    "pages",
    "concepts_page",
    "diff_carry",
    "python_page",
    "recovery_page",
    "recover_verdicts",
    "verdicts",
}
# A library that only these modules may import.
ONLY_IN = {
    "jinja2": {"rmqtool.commands.report_text"},
    "mmap": {"rmqtool.storage.page_cache", "rmqtool.storage.cold_reads"},
    "duckdb": {"rmqtool.report.sql.session"},
    "matplotlib": {"rmqtool.commands.stats_plot"},
    "rocksdict": {"rmqtool.storage.rocksdb.writer"},
    "rich": {"rmqtool.terminal", "rmqtool.commands.browser"},  # on which textual is built
    "textual": {"rmqtool.commands.browser", "rmqtool.commands.browse"},
    "tabulate": {"rmqtool.table"},
    "wcwidth": {"rmqtool.table"},
    "typer": {"rmqtool.cli", "rmqtool.commands", "rmqtool.manpages"},
}
CODECS = {"lz4", "zstandard"}  # imported by name in formats/body.py, where they may be missing
BY_NAME = {"fsspec"}  # and so in storage/remote.py
PROGRAMS = {
    "build",
    "Flask",
    "flask-cors",
    "moto",
    "mypy",
    "pytest",
    "pytest-xdist",
    "ruff",
    "types-tabulate",
}  # of the extra dev: run, or stubs, not imported
NEEDED_BY_OTHERS = {"requests"}  # fsspec loads it for webhdfs and http


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package with its file, under the name it is imported by."""
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if package == "rmqtool" and parts[0] in ("formats", "commands"):
                continue  # through the link: listed under its own folder
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


MODULES = dict(modules())


@dataclass(frozen=True)
class Source:
    """What the tests ask about the statements of a file, which is parsed once in a process."""

    imports: tuple[str, ...]
    """Every module that it imports, also inside functions and for types only."""

    from_imports: tuple[str, ...]
    """Every `module.name` of `from module import name`."""

    functions: tuple[tuple[str, int], ...]
    """The name and lines of every function, without its signature."""


def statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements, also those inside of others; not expressions, which are most of a tree."""
    for node in nodes:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, part, ()))


@cache
def source(path: Path) -> Source:
    """The one parse of a file."""
    imported: list[str] = []
    from_imports: list[str] = []
    functions: list[tuple[str, int]] = []
    for node in statements(ast.parse(path.read_text("utf-8")).body):
        if isinstance(node, ast.Import):
            imported += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found = [f"{node.module}.{alias.name}" for alias in node.names]
            from_imports += found
            imported += (name if name in MODULES else node.module for name in found)
        elif isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            functions.append((node.name, node.end_lineno - node.body[0].lineno))
    return Source(tuple(imported), tuple(from_imports), tuple(functions))


def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports."""
    return source(path).imports


def layer(module: str) -> str | None:
    """The key of RANKS that a module belongs to; None for the package itself."""
    return next((name for name in RANKS if module == name or module.startswith(f"{name}.")), None)


PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py" and layer(name) in ROOMS}


@cache
def public_names(package: str) -> frozenset[str]:
    """What `__all__` of a package names: its modules, or what its `__init__` defines."""
    for node in ast.parse(MODULES[package].read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def used_of_packages(module: str) -> Iterator[tuple[str, str]]:
    """(package, name) of what a module imports from packages that it is not in."""
    for full in source(MODULES[module]).from_imports:
        parts = full.split(".")
        for length in range(2, len(parts)):
            package = ".".join(parts[:length])
            if package in PACKAGES and not inside(module, {package}):
                yield package, parts[length]


def room(module: str) -> str:
    """The first two names of a module. Tests run over all modules of a room, and name the one that fails."""
    return ".".join(module.split(".")[:2])


ALL_ROOMS = sorted({room(module) for module in MODULES})


def modules_of(place: str) -> list[str]:
    """The modules of a room."""
    return [module for module in MODULES if room(module) == place]


def inside(module: str, places: set[str]) -> bool:
    """Whether `module` is one of `places` or below one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


@pytest.mark.parametrize("place", [place for place in ALL_ROOMS if place != "rmqtool"])
def test_imports_point_down(place: str) -> None:
    """No room knows one above it, nor a neighbour; the package itself gives its version only."""
    for module in modules_of(place):
        here = layer(module)
        assert here is not None, f"{module} is in no room"
        for imported in imports(MODULES[module]):
            there = layer(imported)
            if imported == "rmqtool" or not imported.startswith("rmqtool.") or here == there:
                continue
            assert there is not None and RANKS[there] < RANKS[here], f"{module} imports {imported}"


@pytest.mark.parametrize("place", [place for place in ALL_ROOMS if place != "rmqtool"])
def test_a_room_is_used_as_it_says(place: str) -> None:
    """What is outside of a package imports only what `__all__` of the package names."""
    for module in modules_of(place):
        for package, name in used_of_packages(module):
            assert name in public_names(package), f"{module} imports {package}.{name}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_public_names_are_there(package: str) -> None:
    """A name of `__all__` is a module of the package, or its `__init__` defines or imports it."""
    for name in public_names(package):
        assert f"{package}.{name}" in MODULES or hasattr(import_module(package), name), name


def test_every_public_module_of_a_room_is_used() -> None:
    """By another room, or by another package of its room."""
    used = {found for module in MODULES for found in used_of_packages(module)}
    public = {(package, name) for package in PACKAGES for name in public_names(package)}
    unused = {(package, name) for package, name in public - used if f"{package}.{name}" in MODULES}
    # A function of a module of the same name, for users of the library.
    functions = {(package, name) for package, name in unused if f"{package}.{name}.{name}" in
                 {f"{full}.{name}" for full in imports(MODULES[package])}}  # fmt: skip
    assert not unused - functions


@pytest.mark.parametrize("place", ALL_ROOMS)
def test_libraries_stay_in_their_place(place: str) -> None:
    """Nothing is imported under the top-level names of the links; some libraries have one home."""
    for module in modules_of(place):
        for imported in imports(MODULES[module]):
            top = imported.partition(".")[0]
            assert top not in ("formats", "commands", "tests"), f"{module} imports {imported}"
            assert inside(module, ONLY_IN.get(top, {module})), f"{module} imports {imported}"


def test_no_start_makes_what_it_does_not_use() -> None:
    """Every dataclass is one of `lazy_dataclass`, every pattern of a module one of `lazy_pattern`."""
    eager = re.compile(
        r"^\s*(?:from dataclasses import .*\bdataclass\b|@dataclasses\.)|^\w[^#\n]* re\.compile", re.MULTILINE
    )
    found = {name for name, path in MODULES.items() if eager.search(path.read_text("utf-8"))}
    assert found == {"rmqtool.lazy_dataclass"}


def test_every_pattern_is_right() -> None:
    """`re` compiles every pattern of the package, though a run uses few."""
    patterns = [
        value
        for name in MODULES
        for value in vars(import_module(name)).values()
        if isinstance(value, pattern)
    ]
    assert len(patterns) > 50
    for each in patterns:
        assert isinstance(re.compile(each.pattern, each.flags), re.Pattern)


def test_formats_are_pure() -> None:
    """Bytes in, values out: no file, no clock, no path."""
    modules = modules_of("rmqtool.formats")
    assert len(modules) > 10
    for module in modules:
        assert not {imported.partition(".")[0] for imported in imports(MODULES[module])} & IMPURE, module
        for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
            if isinstance(node, ast.Call):
                called = node.func
                assert not (isinstance(called, ast.Name) and called.id == "open"), module
                assert not (isinstance(called, ast.Attribute) and called.attr in ("now", "today", "utcnow"))


@pytest.mark.parametrize("place", ALL_ROOMS)
def test_files_and_functions_are_small(place: str) -> None:
    """800 lines a file, 60 a function, not counting its signature: a command's is its options."""
    for module in modules_of(place):
        assert MODULES[module].read_text("utf-8").count("\n") <= 800, module
        assert not [name for name, lines in source(MODULES[module]).functions if lines >= 60], module


def loaded(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statement`."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return set(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    )


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (
            "import rmqtool",
            {"typer", "rich", "tabulate", "construct", "numpy", "pyarrow", "numba", "pyspark"},
        ),
        (
            "from rmqtool import Finding",
            {"typer", "rich", "tabulate", "construct", "numpy", "pyarrow", "numba"},
        ),
        ("from rmqtool import Store", {"typer", "rich", "tabulate", "numpy", "pyarrow", "numba"}),
        (
            "from rmqtool.cli import build_app; build_app()",
            {"rich", "tabulate", "construct", "numpy", "numba"},
        ),
    ],
)
def test_import_is_light(statement: str, heavy: set[str]) -> None:
    """What is not needed is not loaded: an empty command takes 0.1 s."""
    assert not loaded(statement) & heavy


def test_public_names_are_these() -> None:
    """Pinned: what the package offers, and that each can be had."""
    assert sorted(rmqtool.__all__) == [
        "Finding", "Hit", "Message", "NewMessage", "RmqtoolError", "Selection", "Store", "StoreWriter",
        "StoredMessage", "__version__", "export", "get_message", "lookup", "lookup_columns",
        "message_batches", "message_row", "predict", "query_message", "verify",
    ]  # fmt: skip
    for name in rmqtool.__all__:
        assert getattr(rmqtool, name)
        assert name in dir(rmqtool)
    with pytest.raises(AttributeError):
        rmqtool.__getattr__("nothing")


def test_links_make_the_folders_part_of_the_package() -> None:
    """`rmqtool.formats` is `formats/`, and nothing is imported twice."""
    assert (ROOT / "rmqtool" / "formats").readlink() == Path("../formats")
    assert (ROOT / "rmqtool" / "commands").readlink() == Path("../commands")
    assert not {"formats", "commands"} & set(sys.modules)


def test_every_command_file_is_a_command() -> None:
    """And every command a file of that name, beside which its options, text and charts may have their own."""
    files = {path.stem for path in (ROOT / "commands").glob("*.py")} - SHARED_BY_COMMANDS
    files = {name for name in files if not name.endswith(("_options", "_text", "_plot", "_prompt"))}
    assert set(COMMANDS) == files
    assert len(COMMANDS) == len(files)


def error_classes(
    base: type[errors.RmqtoolError] = errors.RmqtoolError,
) -> Iterator[type[errors.RmqtoolError]]:
    """Every class below `base`."""
    for cls in base.__subclasses__():
        yield cls
        yield from error_classes(cls)


def test_exit_codes_are_one_table() -> None:
    """Each code once; every exception carries one of them; the drawn tree says which."""
    constants = {name: code for name, code in vars(errors).items() if isinstance(code, int)}
    assert len(set(constants.values())) == len(constants)
    assert [code for code, _ in EXIT_STATUS] == sorted(constants.values())
    classes = [cls for cls in error_classes() if cls.__module__ == "rmqtool.errors"]
    assert {cls.exit_code for cls in classes} <= set(constants.values())
    drawn = dict(re.findall(r"^ +(\w+Error) +(\d+) ", errors.__doc__ or "", re.MULTILINE))
    drawn.pop("RmqtoolError", None)
    assert {cls.__name__: str(cls.exit_code) for cls in classes} == drawn


def project() -> dict[str, object]:
    """The table [project] of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, object] = tomllib.load(file)["project"]
    return table


def names(requirements: object) -> set[str]:
    """The distribution names of a list of requirements."""
    assert isinstance(requirements, list)
    return {re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in requirements}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """No dependency that nobody uses, none that only comes along with another."""
    used = {name.partition(".")[0] for path in MODULES.values() for name in imports(path)} | CODECS
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    chosen = ("plot", "remote", "rocksdb", "spark", "sql", "tui")
    optional = set().union(*(names(extras[name]) for name in chosen))
    found = used - set(sys.stdlib_module_names) - {"rmqtool", "pyspark_rocketmq_store"}
    assert names(project()["dependencies"]) == found - optional
    assert optional - found - BY_NAME <= NEEDED_BY_OTHERS
    used = {name.partition(".")[0] for path in (ROOT / "tests").rglob("*.py") for name in imports(path)}
    beyond = used - set(sys.stdlib_module_names) - names(project()["dependencies"]) - optional
    beyond -= {"rmqtool", "tests", "pyspark_rocketmq_store"}
    assert names(extras["dev"]) == beyond | PROGRAMS


def test_constraints_are_names_and_versions() -> None:
    """Every declared dependency is pinned; no addresses, no ranges."""
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if not line.startswith("#")
    ]
    pins = dict(line.split("==") for line in lines)
    assert all(re.fullmatch(r"[0-9a-z.]+", version) for version in pins.values())
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert names(project()["dependencies"]) | names(extras["dev"]) <= set(pins)


def test_the_lab_is_importable() -> None:
    """The default run takes no test of it, so a name that moved would be noticed by CI only."""
    command = [
        sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
        "-o", "python_files=interop_*.py", "tests/interop",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout
