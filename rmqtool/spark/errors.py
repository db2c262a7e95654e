"""Errors that cross the border to Spark, in both directions.

Spark shows the message of an exception and nothing else of it, so `explain_errors` puts the path and the
hint into the message. `spark_errors` finds that message again in the trace that Spark makes of it, and
turns errors of Spark itself into those of this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rmqtool.errors import InputError, RmqtoolError, UsageError
from rmqtool.lazy_pattern import pattern
from rmqtool.message.columns import COLUMNS
from rmqtool.read.table_files import VIEWS

_COLUMNS_HINT = f"columns of messages: {', '.join(column.spark_name for column in COLUMNS)}, brokerName"
_HINTS = {
    "UNRESOLVED_COLUMN": _COLUMNS_HINT,
    "TABLE_OR_VIEW_NOT_FOUND": f"the views are {', '.join(VIEWS)}",
}
"""By condition of an error of Spark's analysis."""
_NO_CONNECTOR = ("No FileSystem for scheme", "S3AFileSystem not found")
_CONNECTOR_HINT = (
    "Spark writes there through Hadoop's connector: for s3a:// URLs --conf"
    " spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, with the version of Spark's Hadoop;"
    " rmqtool export writes to s3:// by itself"
)
_CAUSE = pattern(r"rmqtool\.(?:errors|[a-z_.]+)\.(\w+Error): (.+)")


@contextmanager
def explain_errors() -> Iterator[None]:
    """Put the path and the hint into the message of an error of rmqtool that leaves the block."""
    try:
        yield
    except RmqtoolError as error:
        if error.path is not None and str(error.path) not in error.message:
            error.message = error.in_one_line
        if error.hint is not None and error.hint not in error.message:
            error.message = f"{error.message} ({error.hint})"
        raise


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark into ours: UsageError for a wrong query, InputError for a failed job."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        ours = _ours(str(error))
        if ours is not None:
            raise ours from error
        if "Traceback" in str(error):  # of a Python worker that plans a read
            raise InputError(f"Spark cannot plan the read: {_cause(str(error))}") from error
        condition = error.getCondition() or ""
        hints = (each for name, each in _HINTS.items() if name in condition)
        raise UsageError(_first_line(str(error)), hint=next(hints, None)) from error
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        hint = _CONNECTOR_HINT if any(word in text for word in _NO_CONNECTOR) else None
        if "OutOfMemoryError" in text:
            hint = "--driver-memory 4g, or more, gives it more"
        raise _ours(text) or InputError(f"the Spark job failed: {_cause(text)}", hint=hint) from error
    except Py4JError as error:
        raise InputError("Spark has ended", hint=_first_line(str(error))) from error


def _ours(text: str) -> InputError | UsageError | None:
    """The error of this package in the text of a worker's trace."""
    found = _CAUSE.findall(text)
    if not found:
        return None
    kind, message = found[-1]
    return UsageError(message) if kind == "UsageError" else InputError(message)


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "no reason was given"
    return re.sub(r"\s*SQLSTATE: \w+.*", "", line)


def _cause(text: str) -> str:
    """The line of a Java or Python trace that names the cause."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Error|Exception)\b", line)]
    return (causes or [_first_line(text)])[-1].removeprefix("Caused by: ")
