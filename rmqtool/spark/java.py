"""A Java that Spark runs on, found without starting one where its release file tells the version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rmqtool.errors import InputError

JAVA_MIN = 17
INSTALL_JAVA = "apt-get install openjdk-17-jre-headless (or set JAVA_HOME)"

_JVM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
_VERSION = re.compile(r'"?(?:1\.)?([0-9]+)[^"\n]*"?')


def find_java() -> Path:
    """The home of a Java that Spark runs on: JAVA_HOME, that of `java` on PATH, below /usr/lib/jvm.

    Of several below /usr/lib/jvm the oldest that will do.

    Raises:
        InputError: there is none of version 17 or later.
    """
    seen: list[int] = []
    for home in _java_homes():
        version = java_version(home)
        if version is not None and version >= JAVA_MIN:
            return home
        if version is not None:
            seen.append(version)
    found = f"only version {max(seen)} was found" if seen else "none was found"
    raise InputError(f"Spark needs Java {JAVA_MIN} or later, {found}", hint=INSTALL_JAVA)


def java_version(home: Path) -> int | None:
    """The feature version (8, 17, 21) of the Java in `home`; None where there is none that runs."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    with suppress(OSError):
        for line in (home / "release").read_text("utf-8", "replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                match = _VERSION.fullmatch(line.partition("=")[2].strip())
                return int(match[1]) if match is not None else None
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(match[1]) if match is not None else None


def _java_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    program = shutil.which("java")
    if program is not None:
        yield Path(program).resolve().parent.parent
    homes = [home for folder in _JVM_FOLDERS if folder.is_dir() for home in folder.iterdir()]
    homes += [home / "Contents" / "Home" for home in homes if (home / "Contents" / "Home").is_dir()]
    yield from sorted(homes, key=lambda home: (java_version(home) or 0, home))
