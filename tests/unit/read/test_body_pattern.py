"""--grep: which bodies have a pattern, by every way that a selection is read."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from operator import le
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.cli import main
from rmqtool.errors import UsageError
from rmqtool.formats import batch, body, message, properties
from rmqtool.log.frames import Frames, walk
from rmqtool.log.string_ranges import Ranges, contain
from rmqtool.log.string_ranges import bodies as bodies_of
from rmqtool.read.body_pattern import BodyPattern, Required
from rmqtool.read.messages import message_batches
from rmqtool.read.residual import body_mask
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.source import BytesSource
from tests.support.dumps import Result
from tests.support.exports import append_numbered, small_store
from tests.support.records import record
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE
from tests.support.trees import unchanged

pytestmark = [pytest.mark.sweep, pytest.mark.usefixtures("json_lines")]

CLEAN = "ok_540_clean"
SMALL = "ok_540_small_propcrc"
PATTERNS = ("order", r"green north\.", "20[0-9]{2} order", "(?i)ORDER DONE", "}", "nothing like it", r"\x00")

Run = Callable[..., Result]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command that reads a store; the store must be as it was afterwards."""

    def call(command: str, store: Path, *arguments: object) -> Result:
        with unchanged(store):
            code = main([command, str(store), "--tz", "UTC", *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return call


def expected(store: Store, text: str) -> list[int]:
    """The offsets of the records whose bodies `re` finds the pattern in."""
    pattern = re.compile(text.encode())
    return [
        each.physical_offset
        for each in store.messages()
        if pattern.search(body.decompress(each.message.body, each.message.sys_flag))
    ]


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=5), st.data())
def test_compiled_search_is_that_of_python(data: bytes, text: bytes, draw: st.DataObject) -> None:
    """In ranges anywhere in a window, never beyond their ends."""
    alphabet = bytes.maketrans(bytes(range(256)), bytes(value % 3 for value in range(256)))
    data, text = data.translate(alphabet), text.translate(alphabet)
    edges = st.lists(st.integers(0, len(data)), min_size=2, max_size=2).map(sorted)
    places = draw.draw(st.lists(edges, max_size=8))
    window = np.frombuffer(data + text, np.uint8)[: len(data)]
    starts = np.array([start for start, _ in places], np.int64)
    lengths = np.array([stop - start for start, stop in places], np.int32)
    found = contain(Ranges(window, starts, lengths), text)
    assert found.tolist() == [text in data[start:stop] for start, stop in places]


@given(st.text("aAzZ@`[{\xe9 ", max_size=200), st.text("aAzZ@`[{\xe9 ", min_size=1, max_size=4))
def test_search_without_case_is_that_of_python(data: str, text: str) -> None:
    """Of ASCII letters only: neither the signs beside them nor other letters have a case."""
    body, wanted = data.encode(), text.encode()
    window = np.frombuffer(body + b"\0", np.uint8)
    ranges = Ranges(window, np.array([0, len(body) // 2]), np.array([len(body), 0], np.int32))
    expected = re.search(re.escape(wanted), body, re.IGNORECASE) is not None
    assert contain(ranges, wanted, ignores_case=True).tolist() == [expected, False]


def test_compiled_search_in_large_ranges() -> None:
    """At every place of a block, and across two."""
    for place in (0, 1, 62, 63, 64, 65, 127, 128, 4000, 4088):
        data = np.zeros(4096, np.uint8)
        data[place : place + 8] = np.frombuffer(b"ORDER-17", np.uint8)
        ranges = Ranges(
            data, np.array([0, 0, place + 1]), np.array([4096, place + 7, 4095 - place], np.int32)
        )
        assert contain(ranges, b"ORDER-17").tolist() == [True, False, False]
        assert contain(ranges, b"O").tolist() == [True, True, False]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    """Regular expressions of every kind that `re` reads, over few letters, so that they match often."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(
            st.sampled_from(
                ["a", "b", "A", "ab", r"\.", "\u00e9", ".", r"\w", "[ab]", "[^a]", "$", "^", r"\b", "a b"]
            )
        )
    inner = [draw(expressions(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    form = draw(st.sampled_from(
        ["{}", "({})", "(?:{})", "(?i:{})", "(?-i:{})", "(?s:{})", "(?={})", "(?!{})", "(?<!a)({})", "(?>{})",
         "(?:{})*", "(?:{})+", "(?:{})?", "(?:{}){{2}}", "(?:{}){{0,2}}", "(?:{})+?", "(?:{})++", "({})|b"]
    ))  # fmt: skip
    joint = draw(st.sampled_from(["", "", "|"]))
    return form.format(joint.join(inner))


@given(
    st.sampled_from(["", "(?i)", "(?s)", "(?x)", "(?L)", "(?iL)"]),
    expressions() | st.text(alphabet="ab\\.^$*+?{}[]|(),01\u00e9\n", min_size=1, max_size=6),
    st.lists(st.text("abAB{}]1.,\u00e9\n ", max_size=12), min_size=1, max_size=8),
)
def test_what_a_pattern_requires_is_in_every_match(flags: str, text: str, bodies: list[str]) -> None:
    """Any text is a usage error, or an expression whose text is found wherever it matches."""
    try:
        pattern = BodyPattern(flags + text)
    except UsageError as error:
        assert "cannot be read" in error.message
        return
    required = pattern.required
    for data in map(str.encode, bodies):
        found = pattern.found_in(data)
        with suppress(SystemError):  # see test_groups_that_re_spoils
            assert found == (re.search((flags + text).encode(), data) is not None)
        if required is not None:
            has = required.text.lower() in data.lower() if required.ignores_case else required.text in data
            assert has or not found
            assert found or not (has and required.is_all)


PARTS = (
    "a", "b", "[0-9]", "[^a-c]", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"\n", "[a-]", "[]x]",
    "(ab|b)", "(?:a|)", "\u00e9", "[\u00e9-\u00fc]", r"\x00", r"[\d_]", r"[^\s\d]", r"\.", r"[\]]", "^",
    r"\b", r"\B", "$", r"\A", r"\Z", "(?=a)", "(?!b)", "(?<=a)", "(?>a|ab)", "(?i:a[^b-c])", r"(?s:.)",
    "(?m:^)", "(?m:$)", "(?m:a$|^b)", "(a)", r"\1", "(?(1)a|b)", "a{2}+", "|", "[^\\x00-\\xff]",
)  # fmt: skip
REPEATS = ("", "*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?")


@given(
    st.sampled_from(["", "(?i)", "(?s)", "(?m)", "(?ims)"]),
    st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(REPEATS)), min_size=1, max_size=4),
    st.lists(st.text("abAB0 9\n\0\u00c3\u00a9_-].\v\u0085\u00ffx", max_size=8), min_size=1, max_size=30),
)
def test_re2_finds_what_python_finds(flags: str, parts: list[tuple[str, str]], texts: list[str]) -> None:
    """Of any bytes, valid UTF-8 or not; it may find more where it lacks a part of the pattern."""
    try:
        pattern = BodyPattern(flags + "".join(part + repeat for part, repeat in parts))
    except UsageError:
        return
    re2 = pattern.re2
    assert re2 is not None
    data = [text.encode("latin-1") for text in texts]
    found = pc.match_substring_regex(pa.array(data, pa.binary()), re2.text).to_pylist()
    expected = [pattern.found_in(each) for each in data]
    assert all(map(le, expected, found))
    assert not re2.is_exact or found == expected


@pytest.mark.parametrize(
    ("text", "is_exact"),
    [
        ("[0-9a-f]{9}", True), (r"\d+|x", True), ("(a|bc)*?d.", True), ("^[0-9]", True), (r"\b[0-9]", True),
        (r"[0-9]\Z", True), ("[0-9]$|x$", True), ("([0-9]$)x", False), ("(?m:^[a-f]$)", True),
        ("(?i)[a-f]", True), ("(?=a)[0-9]", False), (r"([0-9])\1", False), ("[0-9]{1001}", False),
        ("[0-9]{3}+", False), ("(?:[0-9]{900}){900}|x", True), (r"\b(?:order|x)\b", True),
    ],
)  # fmt: skip
def test_patterns_are_searched_by_re2(text: str, is_exact: bool) -> None:
    """Where it lacks a part of the pattern, or refuses the pattern, Python decides."""
    pattern = BodyPattern(text)
    assert pattern.re2 is not None
    assert pattern.re2.is_exact == is_exact
    parts = [b"order ", b"0123456789d ", b"x", b"order 5", b"1\n1"] * 20
    sizes = np.array(list(map(len, parts)), np.int32)
    bodies = Ranges(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(sizes) - sizes, sizes)
    found = body_mask(pattern, bodies, np.zeros(len(parts), np.int32))
    assert found.tolist() == list(map(pattern.found_in, parts))


def test_groups_that_re_spoils() -> None:
    """Python 3.11 to 3.13 find the match, and raise SystemError; a later one may say where it is."""
    pattern = BodyPattern("(?:(a)|b|a)++")
    assert pattern.found_in(b"abb")
    assert pattern.span_in("abb") in (None, (0, 3))
    assert not pattern.found_in(b"c")


def test_the_locale_counts_only_for_python() -> None:
    """RE2 has none."""
    assert BodyPattern("(?L)[a-c]").re2 is None


@given(
    expressions(), st.sampled_from(["", "(?i)"]), st.lists(st.text("abAB. \u00e9", max_size=80), min_size=1)
)
def test_batches_are_searched_as_single_bodies(text: str, flags: str, bodies: list[str]) -> None:
    """The compiled way finds what the plain one finds, in compressed bodies too."""
    try:
        pattern = BodyPattern(flags + text)
    except UsageError:
        return
    data = b""
    for place, each in enumerate(map(str.encode, bodies)):
        is_packed = place % 3 == 2
        stored = record(
            body=zlib.compress(each) if is_packed else each,
            sys_flag=int(is_packed),
            physical_offset=len(data),
        )
        data += message.encode(stored)
    (frames,) = (
        each for each in walk(BytesSource(data + bytes(8)), file_from_offset=0) if isinstance(each, Frames)
    )
    found = body_mask(pattern, bodies_of(frames), frames.rows["sys_flag"])
    assert found.tolist() == [pattern.found_in(data) for data in map(str.encode, bodies)]


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ('{"id":17}', (b'{"id":17}', False, True)), (r"1\.5", (b"1.5", False, True)),
        ("zw\u00f6lf", ("zw\u00f6lf".encode(), False, True)), ("(?i)Order-1", (b"Order-1", True, True)),
        ("(?:Or)(der)", (b"Order", False, True)), (r"id=\d+ done", (b" done", False, False)),
        (r"\bORDER-17\b", (b"ORDER-17", False, False)), ("(abc|abd)e", (b"ab", False, False)),
        ("x(?:abc){2,}", (b"abc", False, False)),
        ("(?:abc)?x", (b"x", False, False)), ("(?i:abc)x", (b"x", False, False)),
        ("(?!abc)x", (b"x", False, False)),
        ("[0-9a-f]{9}", None), (r"\d", None), ("abc|xyz", None), ("(?L)abc", None), ("(?i)", None),
    ],
)  # fmt: skip
def test_the_longest_text_is_required(text: str, required: tuple[bytes, bool, bool] | None) -> None:
    """JSON needs no backslash; what may be missing is not required."""
    found = BodyPattern(text).required
    assert found == (None if required is None else Required(*required))


@pytest.mark.parametrize("text", PATTERNS)
def test_every_way_of_reading_finds_the_same(text: str, cases: Library, run: Run, tmp_path: Path) -> None:
    """Plainly and compiled, with and without bodies, through queues, as rows and as files."""
    path = cases.path(CLEAN if IS_WHOLE else SMALL)
    chosen = Selection(grep=BodyPattern(text))
    with Store.open(path) as store:
        wanted = expected(store, text)
        plain = [each.physical_offset for each in store.messages(chosen)]
        batches = message_batches(store, chosen, columns=["physical_offset"])
        compiled = [offset for each in batches for offset in each.column(0).to_pylist()]
    assert plain == compiled == wanted
    assert bool(wanted) == (text != "nothing like it")
    dumped = run("dump", path, "--grep", text)
    assert (dumped.code, [row["physical_offset"] for row in dumped.rows]) == (0, wanted)
    backwards = run("dump", path, "--grep", text, "--reverse", "--limit", 2)
    assert [row["physical_offset"] for row in backwards.rows] == wanted[::-1][:2]
    counted = run("dump", path, "--grep", text, "--stats-only", "--fields", "count")
    assert sum(row["count"] for row in counted.rows) == len(wanted)
    tailed = {row["physical_offset"] for row in run("tail", path, "--grep", text, "--topic", "*").rows}
    everything = {row["physical_offset"] for row in run("tail", path, "--topic", "*").rows}
    assert tailed == everything & set(wanted)
    target = tmp_path / "messages.parquet"
    assert run("export", path, "--grep", text, "--output", target).code == 0
    exported = pq.read_table(target).column("physical_offset").to_pylist() if target.exists() else []
    assert exported == [row["physical_offset"] for row in dumped.rows]


def test_compressed_bodies_are_searched(cases: Library, run: Run) -> None:
    """By what the application wrote, with each compression; in a sweep each message."""
    path = cases.path(CLEAN)
    seen = set()
    for row in run("dump", path).rows:
        if row["body_compression"] in seen and not IS_WHOLE:
            continue
        if row["body_compression"] != "none" and row["body_encoding"] == "utf-8" and row["keys"]:
            found = run("lookup", path, row["keys"][0], "--grep", re.escape(row["body"][:200]))
            if row["physical_offset"] in {each["physical_offset"] for each in found.rows}:
                seen.add(row["body_compression"])
            assert not run("lookup", path, row["keys"][0], "--grep", "nothing like it").rows
    assert len(seen) >= 2


def test_tail_finds_it_in_bulk_and_last(tmp_path: Path, run: Run) -> None:
    """Also where bodies are not shown, and with --last."""
    store = small_store(tmp_path / "s", 3000)
    found = [row["keys"][0] for row in run("tail", store, "--grep", "message 29", "--body", "none").rows]
    assert sorted(found) == sorted(f"k{n}" for n in range(3000) if str(n).startswith("29"))
    last = run("tail", store, "--grep", "message 1.7 ", "--last", 3).rows
    assert {row["keys"][0] for row in last} == {"k177", "k187", "k197"}


def test_messages_inside_a_batch_are_searched_one_by_one(cases: Library, run: Run) -> None:
    """A look-up shows the message inside that has both the key and the pattern."""
    path = cases.path(CLEAN)
    with Store.open(path) as store:
        record = next(store.queue_messages("pubBatchCQ", 0))
        first, second, *_ = batch.decode_items(record.message.body)
    assert first.body != second.body
    key = properties.decode(first.properties_bytes)[properties.UNIQ_KEY]
    own, other = (re.escape(item.body.decode()) for item in (first, second))
    assert [row["found_by"] for row in run("lookup", path, key, "--grep", own).rows] == ["batch"]
    assert not run("lookup", path, key, "--grep", other).rows


def test_a_body_that_cannot_be_decompressed_is_searched_as_stored(cases: Library, run: Run) -> None:
    """What is readable in it counts, in the plain walk and in the compiled one."""
    path = cases.path("bad_cl14_bad_body")
    wrong = next(row for row in run("dump", path).rows if "CL14" in row["status"])
    for way in (("--from-offset", wrong["physical_offset"], "--limit", 1), ()):
        rows = run("dump", path, "--grep", r"\xff{8}", *way).rows
        assert wrong["physical_offset"] in {row["physical_offset"] for row in rows}


def test_a_missing_codec_ends_the_search(cases: Library) -> None:
    """Whether the message matches cannot be said: one clear line, exit code 3. In a process of its own."""
    script = (
        "import sys; sys.modules['zstandard'] = sys.modules['compression.zstd'] = None;"
        "from rmqtool.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "dump", str(cases.path(CLEAN)), "--grep", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "pip install zstandard" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "given_options", "text"),
    [
        ("dump", ("--grep", "a("), "the pattern cannot be read"),
        ("dump", ("--grep", ""), "the pattern is empty"),
        ("dump", ("--grep", "a", "--what", "index"), "only messages have bodies"),
        ("lookup", ("--grep", "a", "--time", "0", "--topic", "*"), "--grep is for messages"),
        ("tail", ("--grep", "*"), "the pattern cannot be read"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    command: str, given_options: tuple[str, ...], text: str, cases: Library, run: Run
) -> None:
    """It says why, and writes nothing."""
    result = run(command, cases.path(CLEAN), *given_options)
    assert (result.code, result.out) == (2, b"")
    assert text in result.err


def test_a_pattern_travels_and_belongs_to_a_cursor(tmp_path: Path, run: Run) -> None:
    """A selection with it can be pickled; a run with another pattern is refused."""
    chosen = Selection(grep=BodyPattern("a.c"))
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert chosen.looks_inside
    store = small_store(tmp_path / "s", 20)
    arguments = ("--output", f"{tmp_path}/out/", "--output-format", "jsonl", "--cursor-file", tmp_path / "c",
                 "--format", "json")  # fmt: skip
    assert json.loads(run("export", store, *arguments, "--grep", "message 1").out)["messages"] == 11
    append_numbered(store, 20, 25)
    assert run("export", store, *arguments, "--grep", "message 2").code == 4
    assert run("export", store, *arguments).code == 4
    assert run("export", store, *arguments, "--grep", "message 1").code == 0


def test_copy_takes_only_what_matches(tmp_path: Path, run: Run) -> None:
    """The new store has the matching messages."""
    store = small_store(tmp_path / "s", 20)
    assert run("copy", store, "--grep", "message 1", "--output", tmp_path / "new").code == 0
    with Store.open(tmp_path / "new") as made:
        bodies = [each.message.body for each in made.messages()]
    assert len(bodies) == 11
    assert all(b"message 1" in each for each in bodies)
