"""The release check: what a user gets from the wheel, with run-time dependencies only.

    python -m tests.tools.release_check build/release

Builds sdist and wheel into that folder, compares what they hold with the checkout, and installs the wheel
in an empty environment of the oldest and of the newest Python that are there. Outside the checkout it runs
`--help`, `verify` and every example of the README, and prints the size of the installation and how long each
command takes to start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

from rmqtool.commands import COMMANDS
from tests import ROOT
from tests.support import stores
from tests.support.trees import copy_tree
from tests.tools import readme

SDIST_FOLDERS = ("commands", "fixtures", "formats", "man", "tests")
SDIST_FILES = ("pyproject.toml", "MANIFEST.in", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
               "LICENSE", "constraints.txt", ".ci/run")  # fmt: skip
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))


def package_files() -> set[str]:
    """Every file that the package needs, as `rmqtool/...`, and Spark's module; the links are followed."""
    folders = {
        "rmqtool": ROOT / "rmqtool",
        "rmqtool/formats": ROOT / "formats",
        "rmqtool/commands": ROOT / "commands",
    }
    files = {
        f"{name}/{path.relative_to(folder)}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.suffix in (".py", ".html") or path.name == "py.typed"
    }
    assert len(files) > len(folders)
    return {*files, "pyspark_rocketmq_store.py"}


def check_wheel(wheel: Path) -> None:
    """The wheel holds the package and the man pages, and nothing under a second name."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {name for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert code == package_files(), sorted(code ^ package_files())
    pages = {path.name for path in (ROOT / "man").iterdir()}
    found = {Path(name).name for name in names if ".data/data/share/man/" in name}
    assert found == pages, sorted(found ^ pages)


def check_sdist(sdist: Path) -> None:
    """The sdist holds everything that the checkout holds; the links have become folders."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.split("/", 1)[-1] for member in members if member.isfile()}
    missing = {name for name in SDIST_FILES if name not in names} | (package_files() - names)
    for folder in SDIST_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                missing |= {str(path.relative_to(ROOT))} - names
    assert not missing, sorted(missing)


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command outside the checkout; its output. Raises CalledProcessError."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RMQTOOL"))
    }
    return subprocess.run(
        command, cwd=cwd, env=environment, check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def main(folder: Path) -> None:
    """Builds into `folder`, checks, installs, runs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run(sys.executable, "-m", "build", "--outdir", folder.resolve(), ROOT, cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)

    library = stores.Library(folder / "cases")
    library.root.mkdir()
    readme.prepare(library, folder)
    for number, python in enumerate(pythons()):
        check_install(wheel.resolve(), python, folder / f"venv{number}", folder)
    sys.stdout.write(f"release check: {wheel.name} and {sdist.name} hold everything; the wheel runs\n")


def pythons() -> list[str]:
    """The oldest and the newest supported Python of this machine; at least the one that runs this."""
    found = {sys.version_info[:2]: sys.executable}
    for version in SUPPORTED:
        program = shutil.which("python{}.{}".format(*version))
        if program is None or version in found:
            continue
        answer = subprocess.run([program, "-c", "import ensurepip"], capture_output=True, check=False)
        if answer.returncode == 0:  # a shim of a version manager may stand for nothing
            found[version] = program
    return [found[version] for version in sorted({min(found), max(found)})]


def check_install(wheel: Path, python: str, venv: Path, folder: Path) -> None:
    """Install the wheel into an environment of its own, and run what a user runs first."""
    run(python, "-m", "venv", venv.resolve(), cwd=folder)
    binaries = venv.resolve() / "bin"
    install = (
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
    )
    run(binaries / "python", *install, wheel, cwd=folder)
    assert "rmqtool COMMAND STORE" in run(binaries / "rmqtool", "--help", cwd=folder)
    assert "rmqtool-recovery" in run(binaries / "rmqtool", "help", "recovery", cwd=folder)
    run(binaries / "rmqtool", "verify", "store", cwd=folder)
    run(binaries / "python", "-c", "import pyspark_rocketmq_store", cwd=folder)  # every Spark session does
    work = folder / f"readme-{venv.name}"
    work.mkdir()
    for name in ("store", "damaged"):
        copy_tree(folder / name, work / name)
    for example in readme.examples(readme.README.read_text("utf-8")):
        output = example.run(work, binaries)
        assert "Traceback" not in output, output
        assert example.kind != "console" or example.matches(output), output
    size = sum(path.stat().st_size for path in venv.rglob("*") if path.is_file() and not path.is_symlink())
    version = run(binaries / "python", "--version", cwd=folder).strip()
    sys.stdout.write(f"{version}: installed {size >> 20} MiB; seconds to start, without a store:\n")
    for name in COMMANDS:
        started = time.monotonic()
        run(binaries / "rmqtool", name.replace("_", "-"), "--help", cwd=folder)
        sys.stdout.write(f"  {name.replace('_', '-'):12} {time.monotonic() - started:5.2f}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
