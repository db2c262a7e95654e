"""The text of rmqtool-spark(7): the options and columns of the source, from the tables that parse them.

Names, values and defaults come from `options.TABLE`, `write_options.PARSERS`, `SourceOptions` and
`WriteOptions`, columns and their types from `schema`. What an option is for is said in
`option_texts`; a name without a text, or a text without a name, is an error when the page is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rmqtool.message.columns import BY_NAME as MESSAGE_COLUMNS
from rmqtool.read.table_files import COLUMNS as TABLE_COLUMNS
from rmqtool.spark.offsets import parse_assign, parse_offsets, parse_times
from rmqtool.spark.option_texts import (
    COLUMN_TEXTS,
    GROUPS,
    INTRODUCTION,
    OTHER_TEXTS,
    REST,
    TABLES,
    WRITE_TEXTS,
)
from rmqtool.spark.options import (
    IGNORED,
    IGNORED_PREFIXES,
    ONE_OF,
    PRECEDENCE,
    STORAGE_PREFIX,
    TABLE,
    WRITE_PREFIX,
    SourceOptions,
)
from rmqtool.spark.schema import COLUMN_SETS, CORRUPT, FIELDS, TABLE_FIELDS, Field, columns_by_options
from rmqtool.spark.stores import parse_broker_names, parse_paths
from rmqtool.spark.values import (
    PARTITIONS_MAX,
    OneOf,
    parse_bool,
    parse_count,
    parse_delay,
    parse_filter,
    parse_ids,
    parse_list,
    parse_moment,
    parse_names,
    parse_number,
    parse_partitions,
    parse_regex,
    parse_single,
    parse_size,
    parse_switch,
    parse_tags,
    parse_text,
)
from rmqtool.spark.write_options import DEFAULT_QUEUES, PARSERS
from rmqtool.write.options import WriteOptions

_VALUES: Final[Mapping[Callable[[str, str], Any], str]] = {
    parse_assign: 'JSON, `{"topic": [0, 1]}` or `{"topic": {"broker": [0, 1]}}`',
    parse_bool: "`true` or `false`",
    parse_broker_names: 'names separated by commas, or JSON, `{"path": "name"}`',
    parse_count: "a whole number, 1 or more",
    parse_delay: "`30s`, `15m` or `1h`, or a number of milliseconds",
    parse_filter: "an expression",
    parse_ids: "queue ids, `3`, `0-3` or `0-3,7`",
    parse_list: "a list",
    parse_moment: "a time",
    parse_names: "a list",
    parse_number: "a whole number, 0 or more",
    parse_offsets: "`earliest`, `latest`, or JSON of offsets",
    parse_partitions: f"a whole number, 1 to {PARTITIONS_MAX}",
    parse_paths: "a path, or a JSON list of paths",
    parse_regex: "a Python regular expression",
    parse_single: "a string",
    parse_size: "a size",
    parse_switch: "`on` or `off`",
    parse_tags: "`*`, or tags separated by `||`",
    parse_text: "a string",
    parse_times: "JSON of milliseconds since 1970",
}
_UNITS: Final[Mapping[Callable[[str, str], Any], tuple[tuple[int, str], ...]]] = {
    parse_delay: ((3_600_000, "h"), (60_000, "m"), (1_000, "s")),
    parse_size: ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")),
}


def text() -> str:
    """The text of the page: headings, paragraphs, entries and blocks, as `manpages` takes them."""
    _check()
    parts = [INTRODUCTION]
    for title, introduction, texts in GROUPS:
        parts += [f"## {title}", introduction, "\n".join(_entry(name, texts[name]) for name in texts)]
    parts += ["\n".join(_write_entry(name, WRITE_TEXTS[name]) for name in WRITE_TEXTS)]
    parts += ["## Combining options", "\n\n".join(_together())]
    parts += ["## Options of other sources", _ignored()]
    parts += ["## Column sets", *_column_sets(), "## Columns", *_columns(), TABLES, *_tables(), REST]
    return "\n" + "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _check() -> None:
    """Raises ValueError where texts and tables do not have the same names."""
    known = {name for name, _, _ in TABLE} | set(OTHER_TEXTS)
    for what, said, there in (
        ("options", {name for _, _, texts in GROUPS for name in texts}, known),
        ("options of writing", set(WRITE_TEXTS), set(PARSERS)),
        ("columns", set(COLUMN_TEXTS), {each.name for each in (*FIELDS, CORRUPT)} - set(_SPARK_TEXTS)),
    ):
        if said != there:
            raise ValueError(f"{what} without a text, or texts without one: {sorted(said ^ there)}")


def _entry(name: str, meaning: str) -> str:
    """The entry of an option for reading."""
    for known, attribute, parse in TABLE:
        if known == name:
            default = {each.name: each.default for each in dataclasses.fields(SourceOptions)}[attribute]
            return _said(name, parse, meaning, default)
    return f"- {name}{'KEY' if name == STORAGE_PREFIX else ''}. Value: {OTHER_TEXTS[name]}. {meaning}"


def _write_entry(name: str, meaning: str) -> str:
    attribute, parse = PARSERS[name]
    defaults = {each.name: each.default for each in dataclasses.fields(WriteOptions)}
    default = defaults.get(attribute, DEFAULT_QUEUES)
    return _said(WRITE_PREFIX + name, parse, meaning, default)


def _said(name: str, parse: Callable[[str, str], Any], meaning: str, default: Any) -> str:
    words = parse.words if isinstance(parse, OneOf) else ()
    quoted = [f"`{word}`" for word in words]
    values = f"{', '.join(quoted[:-1])} or {quoted[-1]}" if quoted else _VALUES[parse]
    shown = _default(parse, default)
    return f"- {name}. Value: {values}. {meaning}" + (f" Default: `{shown}`." if shown else "")


def _default(parse: Callable[[str, str], Any], value: Any) -> str:
    """A default as one would write it; empty where there is none, or where the text has to say it."""
    if value is dataclasses.MISSING or value is None or value == ():
        return ""
    if isinstance(value, bool):
        yes, no = ("on", "off") if parse is parse_switch else ("true", "false")
        return yes if value else no
    for unit, letter in _UNITS.get(parse, ()) if value else ():
        if value % unit == 0:
            return f"{value // unit}{letter}"
    return "" if value == 0 else str(value)


def _together() -> Iterator[str]:
    for group in ONE_OF:
        yield f"At most one of these may be given: {', '.join(f'`{name}`' for name in group)}."
    for group in PRECEDENCE:
        yield f"The first of these that is given is used, as in Kafka: {', '.join(f'`{n}`' for n in group)}."


def _ignored() -> str:
    names = [*IGNORED, *(f"{prefix}*" for prefix in IGNORED_PREFIXES)]
    return (
        "These configure access to a broker or a Kafka cluster. They are accepted and ignored, so queries "
        f"run unchanged: {', '.join(f'`{name}`' for name in names)}. Any other name is an error."
    )


def _column_sets() -> Iterator[str]:
    yield "The columns of a row without `columns` and without a schema, in this order."
    entries = []
    for name in COLUMN_SETS:
        columns = columns_by_options(SourceOptions(column_set=name))  # type: ignore[arg-type]
        entries.append(f"- {name}. " + ", ".join(f"`{each.name}` {each.type}" for each in columns) + ".")
    yield "\n".join(entries)
    yield "With `includeHeaders` the set `kafka` also has `headers` as its last column."


_SPARK_TEXTS: Final = {each.spark_name: each.spark_text for each in MESSAGE_COLUMNS.values()}


def _columns() -> Iterator[str]:
    yield (
        "Every column that `columns` or a schema can name. Names are not case-sensitive; rmqtool's names"
        " (`queue_id`) work too. The first type is the default; a schema can request the others. All columns"
        " can be null. As `string`, bytes are UTF-8, a map is a JSON object, and a list has spaces between"
        " items."
    )
    yield "\n".join(map(_column, (*FIELDS, CORRUPT)))


def _column(field: Field) -> str:
    meaning = _SPARK_TEXTS.get(field.name) or COLUMN_TEXTS[field.name]
    unit = next((each.unit for each in MESSAGE_COLUMNS.values() if each.spark_name == field.name), "")
    return f"- {field.name}. {' or '.join(field.types)}{f', {unit}' if unit else ''}: {meaning}."


def _own_of_tables() -> Iterator[Field]:
    """The columns that messages do not have."""
    for fields in TABLE_FIELDS.values():
        yield from (each for each in fields if each not in FIELDS)


def _tables() -> Iterator[str]:
    """The columns of each table, and what those mean that messages do not have."""
    for table, fields in TABLE_FIELDS.items():
        names = ", ".join(f"`{each.name}` {each.types[0]}" for each in fields)
        yield f"The columns of `{table}`: {names}."
    texts = {each.spark_name: each.text for columns in TABLE_COLUMNS.values() for each in columns}
    entries = (f"- {each.name}. {' or '.join(each.types)}: {texts[each.name]}." for each in _own_of_tables())
    yield "\n".join(entries)
