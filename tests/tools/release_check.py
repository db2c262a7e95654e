"""The release check: what a user gets from the wheel, with run-time dependencies only.

    python -m tests.tools.release_check build/release

Builds sdist and wheel into that folder, compares what they hold with the checkout, installs the
wheel in an empty environment and runs `--help` and `verify` there, outside the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests import ROOT
from tests.support import stores

SDIST_FOLDERS = ("commands", "fixtures", "formats", "man", "tests")
SDIST_FILES = ("pyproject.toml", "MANIFEST.in", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
               "LICENSE", "constraints.txt", ".ci/run")  # fmt: skip
CASE = "ok_540_clean"


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
        if path.suffix == ".py" or path.name == "py.typed"
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

    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    binaries = folder.resolve() / "venv" / "bin"
    install = (
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
    )
    run(binaries / "python", *install, wheel.resolve(), cwd=folder)
    cases = folder / "cases"
    cases.mkdir()
    stores.Library(cases).copy(CASE, folder / "store")
    assert "rmqtool COMMAND STORE" in run(binaries / "rmqtool", "--help", cwd=folder)
    assert "rmqtool-recovery" in run(binaries / "rmqtool", "help", "recovery", cwd=folder)
    run(binaries / "rmqtool", "verify", "store", cwd=folder)
    run(binaries / "python", "-c", "import pyspark_rocketmq_store", cwd=folder)  # every Spark session does
    sys.stdout.write(f"release check: {wheel.name} and {sdist.name} hold everything; the wheel runs\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
