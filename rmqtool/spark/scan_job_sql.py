"""Queries of `--sql`: what they may be, and what they read, told by Spark's own plan and not by their text.

The views are first there with their columns and without rows, so that the plan can be made, and looked at,
before anything runs. Then `messages` is made anew: a column that the plan does not need is not read, it is
null there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import UsageError
from rmqtool.spark.scan_job import ScanRequest, messages
from rmqtool.spark.scan_job_views import ENTRY_SCHEMA, UNIT_SCHEMA, entries_frame, units_frame
from rmqtool.spark.schema import COLUMN_SETS, Asked, ddl, find_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rmqtool.read.store import Store

_COLUMNS = tuple(COLUMN_SETS["full"])
_ANY_COLUMN = "physicalOffset"  # where rows are wanted, and no column of them
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_RUN_BY_ANALYSIS = ("UnresolvedExecuteImmediate", "CompoundBody", "Call")
"""Statements that run others when they are analyzed."""
_WRITES = "InsertInto"
_PROGRAM = "ScriptTransformation"
_TELLS = ("Show", "Describe")
"""How the names of commands begin that only tell of tables."""
_CALLS = ("reflect", "java_method", "try_reflect")
"""Functions that run methods of Java."""
_CALLED = re.compile(rf"`({'|'.join(_CALLS)})`", re.IGNORECASE)
_TOO_DEEP = "the query is nested too deeply"
_DEPTH_MAX = 500  # brackets: Spark's parser gives up at 400 to 800 of them, with the stack that Java has
_BRACKETS = re.compile(r"[()\[\]]")
_QUOTED = re.compile(
    r"""--[^\n]* | /\*(?:.*?\*/|.*) | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `[^`]*`""",
    re.DOTALL | re.VERBOSE,
)
"""Comments, texts and names, in which a bracket is none."""
_NEW_COLUMNS = ("Project", "Aggregate")
"""Nodes whose rows have only what their own expressions name."""
_KEEP_COLUMNS = (
    "Filter", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Join", "Window", "Generate", "Sample",
    "SubqueryAlias", "Repartition", "RepartitionByExpression", "Deduplicate", "Expand",
)  # fmt: skip
"""Nodes whose rows have columns of the rows below them."""


class Reads(NamedTuple):
    """What a query reads: views by name, columns of `messages`, and at how many places it scans that."""

    views: frozenset[str]
    columns: frozenset[str]
    scans: int


def query_frame(
    session: SparkSession, request: ScanRequest, stores: Iterable[tuple[str, Store]], sql: str, reads: Reads
) -> DataFrame:
    """The frame of a query over `messages`, `consume_queue` and `index_entries`; nothing has run yet.

    Args:
        session: with the source registered.
        request: which messages.
        stores: (broker name, store) of all.
        sql: a query, or SHOW, DESCRIBE, EXPLAIN.
        reads: what `reads_of` says of the query.

    Raises:
        ParseException, AnalysisException: of Spark.
    """
    if "messages" in reads.views:
        # Spark 4.3 reads two scans of a view by the filters of one, see `pushdown`.
        options = {"pushdown": "on"} if reads.scans == 1 else {}
        names = [name for name in _COLUMNS if name in reads.columns] or [_ANY_COLUMN]
        _whole(messages(session, request, names, options=options)).createOrReplaceTempView("messages")
    opened = list(stores)
    if "consume_queue" in reads.views:
        units_frame(session, opened, request).createOrReplaceTempView("consume_queue")
    if "index_entries" in reads.views:
        entries_frame(session, opened).createOrReplaceTempView("index_entries")
    return session.sql(sql)


def reads_of(session: SparkSession, sql: str) -> Reads:
    """What a query reads, once it is sure that it only reads.

    Functions that run Java are taken away from the session.

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
        if shown is parsed and not _kind(analyzed).startswith(_TELLS):
            raise _refused(analyzed)
        return Reads(frozenset(views), frozenset(_COLUMNS), 2)
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
    """Raises UsageError for a text that Spark's parser would refuse too, but after minutes."""
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


def _stand_ins(session: SparkSession) -> dict[str, list[str]]:
    """The views without rows; their columns by name."""
    from pyspark.sql.types import StructType

    schemas = {"messages": _schema_text(), "consume_queue": UNIT_SCHEMA, "index_entries": ENTRY_SCHEMA}
    found = {}
    maker: Any = session
    for name, text in schemas.items():
        schema: Any = StructType.fromDDL(text)
        rows = maker.sparkContext.emptyRDD()
        maker.createDataFrame(rows, schema, verifySchema=False).createOrReplaceTempView(name)
        found[name] = schema.fieldNames()
    return found


def _schema_text() -> str:
    fields = [find_field(name, "", "messages") for name in _COLUMNS]
    return ddl(Asked(field.name, field, field.types[0]) for field in fields)


def _whole(frame: DataFrame) -> DataFrame:
    """The frame with all columns of `messages`, null where they are not read."""
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(_schema_text())
    read = set(frame.columns)
    return frame.select(
        *(
            functions.col(field.name) if field.name in read
            else functions.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )  # fmt: skip


# the plan


def _needs(plan: Any, views: dict[str, list[str]]) -> Reads:
    """What an optimized plan needs of the views: columns that no node above them names are not read."""
    found: set[str] = set()
    columns: set[str] = set()
    scans = 0
    pending: list[tuple[Any, frozenset[int] | None]] = [(plan, _ids(plan.output()))]
    while pending:
        node, wanted = pending.pop()
        kind = _kind(node)
        scans += kind == "CTERelationRef"  # rows of another part of the plan, once more
        children = _items(node.children())
        if not children:
            names = {_id(each): str(each.name()) for each in _items(node.output())}
            view = next((view for view, its in views.items() if [*names.values()] == its), None)
            if view is not None:
                found.add(view)
            if view == "messages":
                scans += 1
                columns.update(name for number, name in names.items() if wanted is None or number in wanted)
        if kind in _NEW_COLUMNS:
            wanted = _ids(node.references().toSeq())
        elif kind in _KEEP_COLUMNS:
            wanted = None if wanted is None else wanted | _ids(node.references().toSeq())
        else:
            wanted = None
        pending += [(child, wanted) for child in children]
        pending += [(each, _ids(each.output())) for each in _items(node.subqueries())]
    return Reads(frozenset(found), frozenset(columns), scans)


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
