"""The one Spark session that all tests here share, and what they need to have one.

A session costs some fifteen seconds of work, so there is one for a run. Where Java 17 or pyspark is
missing every test here is skipped, which the summary shows once; with CI set that is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool.errors import InputError
from tests import ROOT

CONF = (
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.sql.shuffle.partitions=2",
    "spark.default.parallelism=2",
    # Queries are small: to compile each, and to plan each again while it runs, costs more than to run it.
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.adaptive.enabled=false",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    # A sharing that tests do not see: the workers of planning are kept as those of tasks are.
    "spark.python.worker.reuse=true",
)
MASTER = "local[2]"
DRIVER_MEMORY = "512m"


def missing_spark() -> str | None:
    """What Spark lacks here; None where it can be started."""
    from rmqtool.spark.session import require_spark

    try:
        require_spark()
    except InputError as error:
        return f"{error.message}: {error.hint}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here run in one process of xdist, beside the others: `--dist loadgroup` and worksteal."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark_installed() -> None:
    """Skips, or in CI fails, where Spark cannot be started."""
    missing = missing_spark()
    if missing is not None and os.environ.get("CI"):
        pytest.fail(missing, pytrace=False)
    if missing is not None:
        pytest.skip(missing)


@pytest.fixture(scope="session")
def spark(spark_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A SparkSession: local[2], no UI, a small heap, the source registered."""
    from rmqtool.spark.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    conf = (*CONF, f"spark.sql.warehouse.dir={folder / 'warehouse'}", f"spark.local.dir={folder / 'local'}")
    before = {name: os.environ.get(name) for name in ("SPARK_LOCAL_IP", "PYTHONPATH")}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        with spark_session(master=MASTER, conf=conf, driver_memory=DRIVER_MEMORY) as session:
            yield session
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
