"""Queries of `--sql`: `spark.sql` over views of the source's tables, once it is sure that a query only reads.

Both that and what a query reads are taken from Spark's own plan, not from the text. For this the views
first exist with their columns and without rows. Then each view that the plan reads becomes the table of
the source.

Spark 4.3.0 prunes no columns of a Python data source: its PythonScanBuilder has only SupportsPushDownFilters.
So the columns of a view that Spark's optimizer does not need are not read, and are null in the view.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import UsageError
from rmqtool.lazy_pattern import pattern
from rmqtool.read.table_files import VIEWS
from rmqtool.spark.options import SourceOptions
from rmqtool.spark.scan_job import ScanRequest, messages, table
from rmqtool.spark.schema import columns_by_options, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ANY_COLUMN = "physicalOffset"  # where rows are wanted, and no column of them
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_RUN_BY_ANALYSIS = ("UnresolvedExecuteImmediate", "CompoundBody", "Call")
"""Statements that run others when they are analyzed."""
_WRITES = "InsertInto"
_PROGRAM = "ScriptTransformation"
_SHOWS = ("Show", "Describe")
"""How the names of commands begin that only describe tables."""
_CALLS = ("reflect", "java_method", "try_reflect")
"""Functions that run methods of Java."""
_CALLED = pattern(rf"`({'|'.join(_CALLS)})`", re.IGNORECASE)
_TOO_DEEP = "the query is nested too deeply"
_DEPTH_MAX = 500  # brackets: Spark's parser gives up at 400 to 800 of them, with the stack that Java has
_BRACKETS = pattern(r"[()\[\]]")
_QUOTED = pattern(
    r"""--[^\n]* | /\*(?:.*?\*/|.*) | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `[^`]*`""",
    re.DOTALL | re.VERBOSE,
)
"""Comments, texts and names, in which brackets do not count."""


class Reads(NamedTuple):
    """The columns that a query reads, by view, and the number of times that it scans `messages`."""

    columns: Mapping[str, frozenset[str]]
    scans: int


def query_frame(session: SparkSession, request: ScanRequest, sql: str, reads: Reads) -> DataFrame:
    """The frame of a query over the views; nothing has run yet.

    Args:
        session: with the source registered.
        request: which messages; units are selected by its topics and queues.
        sql: a query, or SHOW, DESCRIBE, EXPLAIN.
        reads: what `reads_of` says of the query.

    Raises:
        ParseException, AnalysisException: of Spark.
    """
    for view, columns in reads.columns.items():
        schema = _schema(view)
        names = [name for name in schema.names if name in columns] or [_ANY_COLUMN]
        if view == "messages":
            # Spark 4.3 reads two scans of a view by the filters of one, see `pushdown`.
            frame = messages(session, request, names, options={"pushdown": "on"} if reads.scans == 1 else {})
        else:
            frame = table(session, request, VIEWS[view], names)
        _whole(frame, schema).createOrReplaceTempView(view)
    return session.sql(sql)


def reads_of(session: SparkSession, sql: str) -> Reads:
    """Return the columns that a query reads, after making sure that it only reads.

    Removes the functions that run Java from the session.

    Raises:
        UsageError: a statement that would write, change the session, or run something else; or one that is
            nested too deeply.
        ParseException, AnalysisException: of Spark.
    """
    _check_depth(sql)
    views = _stand_ins(session)
    parsed = _parsed(session, sql)
    shown = parsed
    while _kind(shown) == "ExplainCommand":
        shown = shown.logicalPlan()
    for node in _nodes(shown):
        if _kind(node) in _RUN_BY_ANALYSIS or (shown is parsed and _kind(node).startswith(_WRITES)):
            raise _refused(node)
    execution = _analyzed(session, shown)
    analyzed = execution.analyzed()
    if _is_command(session, analyzed):
        if shown is parsed and not _kind(analyzed).startswith(_SHOWS):
            raise _refused(analyzed)
        return Reads({view: frozenset(schema.names) for view, schema in views.items()}, 2)
    for node in _nodes(analyzed):
        if _kind(node) == _PROGRAM or _is_command(session, node):
            raise _refused(node)
    return _needs(execution.optimizedPlan(), views)


def _refused(node: Any) -> UsageError:
    return UsageError(
        f"--sql accepts only queries, and this is {_kind(node)}",
        hint="SELECT ..., or --output to write what is selected; settings go with --conf",
    )


def _parsed(session: SparkSession, sql: str) -> Any:
    from py4j.protocol import Py4JJavaError

    try:
        return _state(session).sqlParser().parsePlan(sql)
    except Py4JJavaError as error:
        if "StackOverflowError" in str(error):
            raise UsageError(_TOO_DEEP) from error
        raise


def _check_depth(sql: str) -> None:
    """Raises UsageError for a text that Spark's parser would also refuse, but only after minutes."""
    depth = 0
    for bracket in _BRACKETS.findall(_QUOTED.sub("", sql)):
        depth = depth + 1 if bracket in "([" else max(depth - 1, 0)
        if depth > _DEPTH_MAX:
            raise UsageError(_TOO_DEEP)


def _analyzed(session: SparkSession, plan: Any) -> Any:
    """The execution of a plan that is analyzed, and of which no command has run."""
    from pyspark.errors import AnalysisException

    inner: Any = session
    jvm, state = inner.sparkContext._jvm, _state(session)
    option = jvm.scala.Option
    for name in _CALLS:
        identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(
            name, option.apply("builtin"), option.apply("system")
        )
        state.functionRegistry().dropFunction(identifier)
    modes = getattr(getattr(jvm.org.apache.spark.sql.execution, "CommandExecutionMode$"), "MODULE$")
    try:
        execution = state.executePlan(plan, modes.SKIP())
        execution.analyzed()
    except AnalysisException as error:
        called = _CALLED.search(str(error)) if error.getCondition() == "UNRESOLVED_ROUTINE" else None
        if called is None:
            raise
        raise UsageError(f"--sql accepts only queries, and {called[1]} can run code") from error
    return execution


# the views


def _schema(view: str) -> StructType:
    """All columns of a view."""
    from pyspark.sql.types import StructType

    options = SourceOptions(table=VIEWS[view], column_set="full")  # type: ignore[arg-type]
    found: Any = StructType.fromDDL(ddl(columns_by_options(options)))
    schema: StructType = found
    return schema


def _stand_ins(session: SparkSession) -> dict[str, StructType]:
    """Make the views without rows; their columns by name."""
    maker: Any = session
    views = {view: _schema(view) for view in VIEWS}
    for view, schema in views.items():
        rows = maker.sparkContext.emptyRDD()
        maker.createDataFrame(rows, schema, verifySchema=False).createOrReplaceTempView(view)
    return views


def _whole(frame: DataFrame, schema: StructType) -> DataFrame:
    """The frame with all columns of a view, null where they are not read."""
    from pyspark.sql import functions

    read = set(frame.columns)
    return frame.select(
        *(
            functions.col(field.name) if field.name in read
            else functions.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )  # fmt: skip


# the plan


def _needs(plan: Any, views: Mapping[str, StructType]) -> Reads:
    """Return the columns of the views that an optimized plan reads.

    The optimizer leaves a Project over each view of which not every column is needed; it may have moved
    Filters below the Project. Under any other node a view is read as a whole.
    """
    columns: dict[str, frozenset[str]] = {}
    scans = 0
    pending: list[tuple[Any, frozenset[int] | None]] = [(plan, None)]
    while pending:
        node, wanted = pending.pop()
        kind = _kind(node)
        scans += kind == "CTERelationRef"  # rows of another part of the plan, once more
        children = _items(node.children())
        if not children:
            names = {_id(each): str(each.name()) for each in _items(node.output())}
            view = next((view for view, schema in views.items() if [*names.values()] == schema.names), None)
            if view is not None:
                scans += view == "messages"
                read = {name for number, name in names.items() if wanted is None or number in wanted}
                columns[view] = columns.get(view, frozenset()) | read
        if kind == "Project":
            wanted = _ids(node.references().toSeq())
        elif kind == "Filter" and wanted is not None:
            wanted |= _ids(node.references().toSeq())
        else:
            wanted = None
        pending += [(child, wanted) for child in children]
        pending += [(each, None) for each in _items(node.subqueries())]
    return Reads(columns, scans)


def _nodes(plan: Any) -> Iterator[Any]:
    """All nodes of a plan, those of its subqueries and of the parts of a WITH too."""
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        pending += _items(node.children())
        pending += _items(node.subqueries())


def _items(found: Any) -> list[Any]:
    """The items of a sequence of Scala."""
    return [found.apply(number) for number in range(found.size())]


def _ids(attributes: Any) -> frozenset[int]:
    return frozenset(map(_id, _items(attributes)))


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _is_command(session: SparkSession, node: Any) -> bool:
    from py4j.java_gateway import is_instance_of

    inner: Any = session
    return bool(is_instance_of(inner.sparkContext._gateway, node, _COMMAND))


def _state(session: SparkSession) -> Any:
    inner: Any = session
    return inner._jsparkSession.sessionState()
