"""`rmqtool.table`: the two ways to align cells give the same lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.message.explain import TABLE_FIELDS, ExplainedField
from rmqtool.output import filled
from rmqtool.read.body_pattern import BodyPattern
from rmqtool.table import BODY_ROOM, Table, narrow_lines, narrower, tabulated_lines
from rmqtool.terminal import broken

CHARACTERS = st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.sampled_from("…█▌▏")
CELLS = st.text(CHARACTERS, max_size=8)
COLOURED = CELLS.filter(str.strip).map(lambda text: f"\x1b[31m{text.strip()}\x1b[0m")


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[str]], list[bool]]:
    """Rows of equal length as `Table` makes them, under a rule; and which columns stand right."""
    count = draw(st.integers(1, 5))
    body = draw(st.lists(st.lists(CELLS | COLOURED, min_size=count, max_size=count), max_size=6))
    rule = ["-" * width for width in draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))]
    return [rule, *body], draw(st.lists(st.booleans(), min_size=count, max_size=count))


@given(tables())
def test_both_ways_align_alike(table: tuple[list[list[str]], list[bool]]) -> None:
    """Narrow cells, with colours and without, as tabulate aligns them."""
    assert narrow_lines(*table) == tabulated_lines(*table)


def test_numbers_stand_right() -> None:
    """Cells of any width; the last column has no white space after it."""
    rows = [["topic", "queues"], ["-----", "------"], ["Orders", "4"], ["A", "12"]]
    assert narrow_lines(rows, [False, True]) == [
        "topic   queues", "-----   ------", "Orders       4", "A           12",
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6), st.integers(0, 99)
)
def test_the_widest_gives_way_first(columns: list[tuple[int, int]], over: int) -> None:
    """As if one column of the terminal after the other were taken."""
    limits, floors = [max(pair) for pair in columns], [min(pair) for pair in columns]
    widths, rest = list(limits), over
    while rest and any(limit > floor for limit, floor in zip(limits, floors, strict=True)):
        open_places = [place for place, floor in enumerate(floors) if limits[place] > floor]
        limits[max(open_places, key=lambda place: limits[place])] -= 1
        rest -= 1
    assert narrower(widths, floors, over) == limits


def test_a_body_of_megabytes_is_cut_to_the_terminal() -> None:
    """In a moment, in any language."""
    rows = [{"topic": "Orders", "body": "件" * 1_000_000}, {"topic": "Orders", "body": "a" * 4_000_000}]
    lines = Table(("topic", "body"), width=80).lines(rows)
    assert lines[2:] == ["Orders  " + "件" * 35 + "…", "Orders  " + "a" * 71 + "…"]


ROWS = [
    {"physical_offset": 4096, "size": 359, "topic": "Orders", "store_time": "2026-11-21T08:50:12.680+00:00",
     "keys": "order-17", "group": None, "body": "a body of some length, longer than a terminal is wide",
     "status": "ok"},
    {"physical_offset": 8192, "size": 388, "topic": "Orders", "store_time": "2026-11-21T08:51:16.716+00:00",
     "keys": "order-18", "group": None, "body": "another body", "status": "ok"},
]  # fmt: skip


def test_a_wide_terminal_shows_everything() -> None:
    table = Table(tuple(ROWS[0]), width=200)
    text = "\n".join(table.lines(ROWS))
    assert "2026-11-21T08:50:12.680+00:00" in text and "4096" in text
    assert (table.shared, table.left_out) == (None, ())


def test_a_narrow_terminal_keeps_names_and_bodies() -> None:
    """Times lose what they share; empty columns, states without news, and numbers give way to the body."""
    table = Table(tuple(ROWS[0]), width=60)
    lines = table.lines(ROWS)
    assert all(len(line) <= 60 for line in lines)
    assert table.shared == "2026-11-21, +00:00"
    assert table.left_out == ("physical_offset", "size", "group", "status")
    assert "08:50:12.680" in lines[-2] and "order-17" in lines[-2] and "a body of some le" in lines[-2]
    later = table.lines([{**ROWS[0], "store_time": "2026-11-22T00:00:00.000+00:00"}])
    assert "2026-11-22T00:00:00.000" in later[0], "a time of another day shows its date"


LONG = "pubVeryLongGroup_VeryLongGroup_VeryLongGroup"
GROUPS = [
    {"group": group, "topic": topic, "queue_id": queue, "committed_offset": 37, "max_offset": 148,
     "lag_messages": 111, "lag_bytes": 99436, "lost_messages": 0,
     "oldest_time": "2026-11-21T08:50:24.578+00:00", "reads_from": "memory", "status": [status],
     "share": "████"}
    for group, topic, status in (
        (f"{LONG}_0", f"%RETRY%{LONG}_0", "ok"), (f"{LONG}_1", f"%RETRY%{LONG}_1", "never_committed"),
        ("pub_group_four", "pubTopicOne", "ok"), ("pub_group_five", "pubTopicTwo", "ok"),
    )
    for queue in (0, 1)
]  # fmt: skip


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
def test_groups_are_told_apart_before_anything_else_is_shown(width: int) -> None:
    """Names differ, states are whole, and the lag stays; what says nothing and percentiles give way."""
    table = Table(tuple(GROUPS[0]), width=width)
    lines = table.lines(GROUPS)
    assert all(len(line) <= width for line in lines)
    rows = [line.split() for line in lines[-len(GROUPS) :]]
    assert [len({row[column] for row in rows}) for column in (0, 1)] == [4, 4]
    assert sum("never_committed" in row for row in rows) == 2 and all("111" in row for row in rows)
    assert table.left_out[-2:] == ("share", "lost_messages") if table.left_out else width == 120
    assert min(len(row[0]) for row in rows) >= 12


SPANS = [(53, 30, 43, None, "ahead"), (1, 1, 1, 0, "ok"), (37, 50, 275, 225, "lost"),
         (None, 0, 4, 4, "never_committed")]  # fmt: skip


def of_offsets(status: str | None = None, digits: int = 1) -> list[dict[str, object]]:
    """Groups before, in and past their queues."""
    return [
        {"group": "CID_RMQ_SYS_TRANS", "topic": f"RMQ_SYS_TRANS_{'OP_' * (place % 2)}HALF_TOPIC",
         "queue_id": 0, "committed_offset": None if committed is None else committed * digits,
         "min_offset": first * digits, "max_offset": end * digits, "lag_messages": lag, "share": "██",
         "lag_bytes": 9000, "lost_messages": 13, "oldest_time": "2026-11-21T09:04:37.457+00:00",
         "reads_from": "memory", "status": [status or word]}
        for place, (committed, first, end, lag, word) in enumerate(SPANS)
    ]  # fmt: skip


def test_the_offsets_of_groups_stay_before_what_they_tell() -> None:
    """At 80 columns a row says whether a group is before, in or past its queue; else its status does."""
    offsets = ("committed", "min", "max")
    for rows, width, has_offsets, has_status in (
        (of_offsets(), 80, True, False),
        (of_offsets(), 100, True, True),
        (of_offsets(digits=10**9), 80, False, True),
        (of_offsets("unreadable"), 80, False, True),  # which no offset tells
    ):
        table = Table(tuple(rows[0]), width=width)
        lines = table.lines(rows)
        assert all(len(line) <= width for line in lines)
        header = lines[0].split()
        assert [name in header for name in (*offsets, "lag")] == [has_offsets] * 3 + [True]
        assert ("status" in header, "status" in table.left_out) == (has_status, not has_status)
    assert Table(tuple(rows[0]), width=80).lines(of_offsets())[3].split()[-3:] == ["53", "30", "43"]


def test_a_cut_name_looks_like_no_other() -> None:
    """Also not like one that is whole."""
    lines = Table(tuple(of_offsets()[0]), width=80).lines(of_offsets())
    assert "RMQ_SYS_TRANS_HALF_TOPIC " in lines[3] and "P_HALF_TOPIC " in lines[4]


def test_empty_columns_go_before_others_and_what_people_look_for_last() -> None:
    """Of empty columns the last goes first, and one that stays longest after all others."""
    names = ("lag_messages", "share", "lag_bytes", "oldest_time", "reads_from")
    rows = [{"group": "(unknown)", **dict.fromkeys(names), "status": ["offsets_missing"]}]
    for width in (60, 50, 40):
        table = Table(tuple(rows[0]), width=width)
        table.lines(rows)
        assert "lag_messages" not in table.left_out
        assert table.left_out == names[len(names) - len(table.left_out) :], width
    assert len(table.left_out) > 2
    reset = {"group": "pub_group_one", "topic": "a" * 40, "committed_offset": None, "new_offset": 1}
    table = Table((*reset, "reason"), width=50)
    table.lines([reset])
    assert table.left_out == ("reason",)


def test_percentiles_give_way_to_topics() -> None:
    names = ("count", "bytes", "body_min_bytes", "body_p99_bytes", "body_max_bytes", "delay_p50_ms",
             "delay_p99_ms", "messages_per_s")  # fmt: skip
    rows = [{"topic": f"OrdersOfTheWholeYear{name}", **dict.fromkeys(names, 123456)} for name in "ABC"]
    table = Table(tuple(rows[0]), width=72)
    lines = table.lines(rows)
    assert {line.split()[0] for line in lines[-3:]} == {row["topic"] for row in rows}
    assert table.left_out[-1] == "body_p99_bytes" and "count" not in table.left_out


def test_times_of_several_zones_stay_whole() -> None:
    rows = [ROWS[0], {**ROWS[1], "store_time": "2026-11-21T09:51:16.716+01:00"}]
    table = Table(("topic", "store_time", "body"), width=50)
    assert "2026-11-21T09:51:16.716+01:00" in table.lines(rows)[-1]
    assert table.shared is None


def test_a_path_is_cut_where_it_says_least() -> None:
    """The zeros of a file's name go, then the middle; the queue and the file are still seen."""
    rows = [{"path": "consumequeue/Orders/3/00000000000000012000", "reason": "short"}]
    assert Table(("path", "reason"), width=40).lines(rows)[-1].split() == [
        "consumequeue/Orders/3/…12000", "short",
    ]  # fmt: skip
    (line,) = Table(("path", "reason"), width=30).lines(rows)[2:]
    assert line.startswith("consume") and "3/…12000" in line and len(line) <= 30


def test_a_reason_continues_on_the_next_line() -> None:
    rows = [{"path": "checkpoint", "reason": "the queue is rebuilt from the log: wrong tags code"}]
    lines = Table(("path", "reason"), width=40).lines(rows)
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(line[12:] for line in lines[2:]) == rows[0]["reason"]


def test_what_is_left_of_a_damaged_record_is_never_cut() -> None:
    """`recover` names the body first; its text continues on the next line."""
    row = {"left": "body 1024/1024, header", "topic": "pubMultiTag", "queue_id": 1, "uniq_key": "F" * 56}
    lines = Table(("left", "topic", "queue_id", "uniq_key"), width=40).lines([row])
    assert [line.split("  ")[0] for line in lines[-3:]] == ["body", "1024/1024,", "header"]


@given(st.text(st.sampled_from("ab -:/"), max_size=200), st.integers(1, 120))
def test_a_line_of_a_report_loses_no_word(text: str, width: int) -> None:
    """Filled or not, the words and their order stay."""
    line = f"{'verdict':<13}{text}"
    pieces = filled(line, width)
    assert " ".join(pieces).split() == line.split()
    assert all(len(piece) <= max(width, 53) or " " not in piece[13:].strip() for piece in pieces)


def test_command_lines_stay_whole() -> None:
    """They are there to be copied."""
    command = "rmqtool recover '/a path/store' --undo " + "/backups/" * 20
    line = f"{'next':<13}{command}"
    assert filled(line, 80) == [line]
    *before, last = broken(f"rmqtool: nothing was changed; to apply the plan: {command}", 80)
    assert last.strip() == command and all(len(each) <= 80 for each in before)
    assert broken(f"  {command}", 80) == [f"  {command}"]


def test_a_body_that_was_searched_shows_the_match() -> None:
    """Cut on both sides of it; in a pipe, and where the match is at the beginning, as other bodies."""
    bodies = [
        "a" * 90 + "west south." + "b" * 90,
        "south" + "c" * 90,
        "d" * 90,
        "复" * 90 + "south" + "e" * 90,
    ]
    rows: list[dict[str, object]] = [
        {"topic": f"Orders{number}", "body": body} for number, body in enumerate(bodies)
    ]
    found = BodyPattern("south.?").span_in
    shown = [
        line.split(maxsplit=1)[1] for line in Table(("topic", "body"), width=40, sought=found).lines(rows)[2:]
    ]
    assert shown[0].startswith("…aa") and shown[0].endswith("bb…") and "south" in shown[0]
    assert shown[1].startswith("south") and shown[2].startswith("ddd") and "south" in shown[3]
    assert all(len(line) <= 40 for line in Table(("topic", "body"), width=40, sought=found).lines(rows))  # noqa: PLR2004
    assert Table(("topic", "body"), sought=found).lines(rows)[2].endswith(bodies[0])
    assert BodyPattern("s[o]uth").span_in("复south") == (1, 6)


def test_a_searched_body_keeps_room_where_others_do_not() -> None:
    """Tags and keys are cut, and numbers go, before the text that was found."""
    rows = [ROWS[0] | {"keys": ["k" * 40], "tags": "t" * 40, "body": "a" * 90 + "south" + "b" * 90}]
    for width in (60, 80):
        table = Table(tuple(rows[0]), width=width, sought=BodyPattern("south").span_in)
        line = table.lines(rows)[-1]
        found = re.search(r"…a+southb+…", line)
        assert found is not None and len(found[0]) >= BODY_ROOM and len(line) <= width


def test_the_bytes_of_a_body_can_be_read_at_80_columns() -> None:
    """The offset of each field, which the record's and the names of the lines say, goes before their text."""
    text = b"payment login is"
    rows = [
        ExplainedField(1 << 40, "prepared_transaction_offset", bytes(8), "0", "physical offset").row(),
        ExplainedField(
            1 << 40, "body_crc", bytes(4), "1767678127  computed 1216979244", "CRC-32 of it"
        ).row(),
        ExplainedField(1 << 40, "body.0", text, f"|{text.decode()}|", "").row(),
    ]
    lines = Table(TABLE_FIELDS, width=80).lines(rows)
    assert lines[-1].endswith("|payment login is|") and text.hex(" ", -4) in lines[-1]
    wide = Table(TABLE_FIELDS, width=200).lines(rows)
    assert str(1 << 40) in wide[-1] and wide[0].split()[0] == "field_offset"


def test_days_show_their_date_and_results_are_whole() -> None:
    rows = [
        {"topic": f"T{n}", "day_time": "2026-11-21T00:00:00.000+00:00", "result": "it no longer has a record"}
        for n in range(2)
    ]
    lines = Table(("topic", "day_time", "result"), width=30).lines(rows)
    text = " ".join(" ".join(lines).split())
    assert "2026-11-21" in lines[-3] and "00:00:00" not in text and "…" not in text


def test_a_column_that_is_blank_in_each_row_is_not_spelled_out() -> None:
    rows: list[dict[str, object]] = [
        {"found_by": "filler", "matched": [], "topic": f"T{n}", "body": "b" * 90} for n in range(2)
    ]
    table = Table(tuple(rows[0]), width=30)
    table.lines(rows)
    assert table.said_of_all() == ["found_by is filler"]


def test_offsets_that_a_reset_replaces_stay_before_counts_that_follow_from_them() -> None:
    """At 80 columns: the old committed offset is what an operator writes down."""
    row = {"group": "pub_group_four", "topic": "%RETRY%pub_group_four", "queue_id": 0, "committed_offset": 37,
           "new_offset": 0, "again_messages": 37, "skipped_messages": 0, "lag_messages": 150}  # fmt: skip
    table = Table(list(row), width=80)
    table.lines([row])
    assert table.left_out == ("skipped_messages",)


def test_columns_of_a_query() -> None:
    """A time is one under any name, and an expression in a header is not broken."""
    times = [f"2026-11-21T0{hour}:00:00.000+00:00" for hour in range(3)]
    name = "sum(octet_length(body_of_it))"
    rows: list[dict[str, object]] = [{"hour": time, name: 1, "max_of_all": 2} for time in times]
    table = Table(("hour", name, "max_of_all"), width=50)
    lines = table.lines(rows)
    assert table.shared == "2026-11-21, +00:00" and name in lines[0] and lines[-1].startswith("02:00:00.000 ")
    assert "max_of_all" not in lines[0]


def test_a_column_that_says_the_same_in_each_row_makes_room() -> None:
    """It is said below the table, with what a later block says."""
    rows = [{"found_by": "index", "topic": "t" * 30, "tags": "g" * 30, "body": "b" * 200} for _ in range(3)]
    table = Table(("found_by", "topic", "tags", "body"), width=80)
    first = table.lines(rows)
    assert first[0].split() == ["topic", "tags", "body"] and table.alike == {"found_by": ["index"]}
    table.lines([{**rows[0], "found_by": "scan"}])
    assert table.alike == {"found_by": ["index", "scan"]}
    wide = Table(("found_by", "topic"), width=80)
    assert wide.lines(rows)[0].split() == ["found_by", "topic"] and not wide.alike


def test_a_look_up_does_not_repeat_what_was_typed() -> None:
    """In one row too; a later block with more keys is mentioned, however many it has."""
    row = {"physical_offset": 4096, "keys": ["K", "L"], "tags": "t" * 30, "body": "b" * 200}
    table = Table(tuple(row), width=60, typed={"keys": "K"})
    assert table.lines([row])[0].split() == ["physical", "keys", "tags", "body"] and not table.alike
    table = Table(tuple(row), width=60, typed={"keys": "K"})
    assert table.lines([row | {"keys": ["K"]}])[0].split() == ["physical", "tags", "body"]
    assert table.said_of_all() == ["keys is K"]
    table.lines([row | {"keys": ["K", str(n)]} for n in range(9)])
    assert table.said_of_all() == ["keys is K or K, 0 or K, 1 or 7 others"]


def test_a_body_keeps_its_room_beside_long_tags() -> None:
    """Names of topics stay whole for both."""
    row = {"topic": "t" * 20, "tags": "g" * 60, "body": "b" * 60}
    line = Table(("topic", "tags", "body"), width=80).lines([row])[-1]
    topic, tags, body = line.split()
    assert topic == row["topic"] and len(tags) >= 16 and len(body) >= 24


def test_the_last_column_stays() -> None:
    """A query may name its only column as those that make room for others."""
    rows = [{"matched": "k" * 120} for _ in range(2)]
    assert "k" in Table(("matched",), width=80).lines(rows)[-1]
    pairs = [{"found_by": "i" * 90, "matched": "k" * 90} for _ in range(2)]
    assert len(Table(("found_by", "matched"), width=80).lines(pairs)) >= 3  # noqa: PLR2004
