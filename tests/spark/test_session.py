"""What is looked at before a session is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.spark import session
from tests.support.stores import Library
from tests.tools import readme


@pytest.mark.parametrize("lacks", ["rmqtool", "file"])
def test_a_python_without_rmqtool(
    cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    spark_installed: None, lacks: str,
) -> None:  # fmt: skip
    """Where PYSPARK_PYTHON names one, a line says so before a job starts."""
    python = tmp_path / "python"
    if lacks == "rmqtool":
        python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'rmqtool'\" >&2\nexit 1\n")
        python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    assert main(["spark-scan", str(cases.path("ok_540_clean")), "--count"]) == 3
    why = {
        "rmqtool": "import rmqtool: ModuleNotFoundError: No module named 'rmqtool'",
        "file": "be run: No such file or directory",
    }
    told = capfd.readouterr().err.splitlines()
    assert told[0] == f"rmqtool: the Python of PYSPARK_PYTHON, {python}, cannot {why[lacks]}"
    assert len(told) == 2


def test_tables_have_a_temporary_folder(monkeypatch: pytest.MonkeyPatch, spark_installed: None) -> None:
    """Else SHOW TABLES makes one in the working directory; a folder of the user's stays."""
    found: list[str] = []

    def start(values: dict[str, str], log: object) -> None:
        found.append(values[session.WAREHOUSE])
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    for conf in ((), (f"{session.WAREHOUSE}=/data/tables",)):
        with pytest.raises(KeyboardInterrupt), session.spark_session(conf=conf):
            pass
    assert "/rmqtool-spark-" in found[0] and found[0].startswith("file:///")
    assert found[1] == "/data/tables"


def test_the_example_of_the_python_page(
    spark: Any, cases: Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run in the session of all tests; its store is a real one."""
    (example,) = readme.python_examples(spark=True)
    path = str(cases.path(readme.CASE))
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ["PYSPARK_PYTHON"])  # which it sets
    exec(example.command.replace('"store"', repr(path)), {})  # noqa: S102 - of a page of this project
    assert capsys.readouterr().out.startswith("Row(topic=")
