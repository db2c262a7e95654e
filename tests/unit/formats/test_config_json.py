"""The brokers' JSON: texts of three versions and of both libraries, references, .bak rules, any text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import config_json, fastjson
from rmqtool.formats.config_json import ConsumerFilter, DataVersion, Loaded, SubscriptionGroup, TopicConfig
from rmqtool.formats.fastjson import Dialect, dump, parse, resolve

# Written by fastjson 1.2.83 and fastjson2 2.0.43 from one object: sets, lists, arrays, maps, escapes.
FASTJSON_1 = (
    "{\n"
    '\t"bitPos":[1,2,3],\n'
    '\t"groupTopicMap":{\n'
    '\t\t"g1":["t1","t2"],\n'
    '\t\t"g0":[]\n'
    "\t},\n"
    '\t"hostedQueues":{0:[\n'
    "\t\t\t{\n"
    '\t\t\t\t"a":1\n'
    "\t\t\t},\n"
    "\t\t\t{\n"
    '\t\t\t\t"a":2\n'
    "\t\t\t}\n"
    "\t\t],-1:[]\n"
    "\t},\n"
    '\t"none":{},\n'
    '\t"o":[\n'
    "\t\t5,\n"
    "\t\t6\n"
    "\t],\n"
    '\t"ratio":1.5E10,\n'
    '\t"small":0.25,\n'
    '\t"subscriptionDataSet":[{\n'
    '\t\t"a":3\n'
    "\t},{\n"
    '\t\t"a":4\n'
    "\t}],\n"
    '\t"text":"\\u0000\\b\\t\\n\\u000B\\f\\r\\u001F\\"\\\\/\'<\\u007F\\u009F\xa0\\u2028\u4e2d\U0001f600",\n'
    ""
    '\t"twice1":{\n'
    '\t\t"a":9\n'
    "\t},\n"
    '\t"twice2":{"$ref":"$.twice1"}\n'
    "}"
)
FASTJSON_2 = (
    "{\n"
    '\t"bitPos":[1,2,3],\n'
    '\t"groupTopicMap":{\n'
    '\t\t"g1":[\n'
    '\t\t\t"t1",\n'
    '\t\t\t"t2"\n'
    "\t\t],\n"
    '\t\t"g0":[\n'
    "\t\t\t\n"
    "\t\t]\n"
    "\t},\n"
    '\t"hostedQueues":{\n'
    "\t\t0:[\n"
    "\t\t\t{\n"
    '\t\t\t\t"a":1\n'
    "\t\t\t},\n"
    "\t\t\t{\n"
    '\t\t\t\t"a":2\n'
    "\t\t\t}\n"
    "\t\t],\n"
    "\t\t-1:[\n"
    "\t\t\t\n"
    "\t\t]\n"
    "\t},\n"
    '\t"none":{\n'
    "\t\t\n"
    "\t},\n"
    '\t"o":[5,6],\n'
    '\t"ratio":1.5E10,\n'
    '\t"small":0.25,\n'
    '\t"subscriptionDataSet":[\n'
    "\t\t{\n"
    '\t\t\t"a":3\n'
    "\t\t},\n"
    "\t\t{\n"
    '\t\t\t"a":4\n'
    "\t\t}\n"
    "\t],\n"
    '\t"text":"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f\\"\\\\/\'<\x7f\x9f\xa0\u2028\u4e2d\U0001f600",\n'
    '\t"twice1":{\n'
    '\t\t"a":9\n'
    "\t},\n"
    '\t"twice2":{\n'
    '\t\t"a":9\n'
    "\t}\n"
    "}"
)
FASTJSON_1_COMPACT = (
    '{"bitPos":[1,2,3],"groupTopicMap":{"g1":["t1","t2"],"g0":[]},"hostedQu'
    'eues":{"0":[{"a":1},{"a":2}],"-1":[]},"none":{},"o":[5,6],"ratio":1.5E'
    '10,"small":0.25,"subscriptionDataSet":[{"a":3},{"a":4}],"text":"\\u0000'
    "\\b\\t\\n\\u000B\\f\\r\\u001F\\\"\\\\\\/'<\\u007F\\u009F\\u00A0\\u2028\\u4E2D\\uD83D\\uDE"
    '00","twice1":{"a":9},"twice2":{"$ref":"$.twice1"}}'
)
FASTJSON_2_COMPACT = (
    '{"bitPos":[1,2,3],"groupTopicMap":{"g1":["t1","t2"],"g0":[]},"hostedQu'
    'eues":{"0":[{"a":1},{"a":2}],"-1":[]},"none":{},"o":[5,6],"ratio":1.5E'
    '10,"small":0.25,"subscriptionDataSet":[{"a":3},{"a":4}],"text":"\\u0000'
    '\\b\\t\\n\\u000b\\f\\r\\u001f\\"\\\\/\'<\x7f\x9f\xa0\u2028\u4e2d\U0001f600","twice1":{"a":9},"twice2":{"a":9}'
    "}"
)
REFERENCES = (
    "{\n"
    '\t"a-b.c":{\n'
    '\t\t"x":1\n'
    "\t},\n"
    '\t"l":[\n'
    '\t\t{"$ref":"$.a\\\\-b\\\\.c"}\n'
    "\t],\n"
    '\t"im":{7:{\n'
    '\t\t\t"y":1\n'
    "\t\t}\n"
    "\t},\n"
    '\t"again":{"$ref":"$.im[7]"}\n'
    "}"
)

OBJECT: dict[str | int, Any] = {
    "bitPos": [1, 2, 3],
    "groupTopicMap": {"g1": ["t1", "t2"], "g0": []},
    "hostedQueues": {0: [{"a": 1}, {"a": 2}], -1: []},
    "none": {},
    "o": [5, 6],
    "ratio": 1.5e10,
    "small": 0.25,
    "subscriptionDataSet": [{"a": 3}, {"a": 4}],
    "text": "\0\b\t\n\x0b\f\r\x1f\"\\/'<\x7f\x9f\xa0\u2028\u4e2d\U0001f600",
    "twice1": {"a": 9},
    "twice2": {"a": 9},
}

# Files of real brokers, whole.
BROKER_FILES: list[tuple[Dialect, bool, str]] = [
    ("4.9", False, '{\n\t"filterDataByTopic":{}\n}'),
    ("4.9", False, '{\n\t"offsetTable":{1:17,2:5,3:7\n\t}\n}'),
    ("4.9", False,
     '{\n\t"offsetTable":{\n\t\t"pubRetry@pub_retry_group":{0:12\n\t\t},\n\t\t"%RETRY%pub_retry_group@pub_retry_group"'
     ':{0:12\n\t\t},\n\t\t"pubTopicOne@pub_group_one":{0:299\n\t\t},\n\t\t"pub-Topic_Four@pub_group_four":{0:37,1:48,'
     '2:0,3:64\n\t\t},\n\t\t"%RETRY%pub_group_tag@pub_group_tag":{0:0\n\t\t},\n\t\t"pubTopicEight@pub_group_tag":{0:71'
     ',1:70,2:70,3:69,4:69,5:71,6:70,7:70\n\t\t}\n\t}\n}'),
    ("5.3", False,
     '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795251900775\n\t},\n'
     '\t"offsetTable":{1:24,2:5,3:8,4:0\n\t}\n}'),
    ("5.3", True,
     '{"dataVersion":{"counter":28,"stateVersion":0,"timestamp":1795251888040},'
     '"timingCount":{"pubDelay":{"count":4,"timeStamp":1795251888040}}}'),
    ("5.4", True,
     '{"dataVersion":{"counter":53,"stateVersion":0,"timestamp":1795251064538},'
     '"transactionCount":{"pubTx":{"count":13,"timeStamp":1795251064538}}}'),
    ("5.4", False, '{\n\t"orderedConsumptionLevel":"QUEUE",\n\t"table":{\n\t\t\n\t}\n}'),
    ("5.4", False,
     '{\n\t"dataVersion":{\n\t\t"counter":4,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795251076704\n\t},\n'
     '\t"offsetTable":{\n\t\t1:27,\n\t\t2:5,\n\t\t3:7,\n\t\t4:0\n\t}\n}'),
]  # fmt: skip
# Entries of topics.json as real brokers wrote them.
TOPICS_49 = (
    '{\n\t"dataVersion":{\n\t\t"counter":21,\n\t\t"timestamp":1795251076638\n\t},\n\t"topicConfigTable":{\n'
    '\t\t"pubOrder":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":4,\n'
    '\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"pubOrder",\n\t\t\t"topicSysFlag":0,\n'
    '\t\t\t"writeQueueNums":4\n\t\t}\n\t}\n}'
)
TOPICS_53 = (
    '{\n\t"topicConfigTable":{\n\t\t"pubBatchCQ":{\n\t\t\t"attributes":{\n\t\t\t\t"queue.type":"BatchCQ"\n\t\t\t},\n'
    '\t\t\t"order":false,\n\t\t\t"perm":6,\n\t\t\t"readQueueNums":2,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
    '\t\t\t"topicName":"pubBatchCQ",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":2\n\t\t},\n'
    '\t\t"pubBatch":{\n\t\t\t"attributes":{},\n\t\t\t"order":false,\n\t\t\t"perm":6\n\t\t}\n\t}\n}'
)
BROKER_FILES += [("4.9", False, TOPICS_49), ("5.3", False, TOPICS_53)]


@pytest.mark.parametrize(("dialect", "compact", "text"), BROKER_FILES)
def test_files_of_brokers_round_trip(dialect: Dialect, compact: bool, text: str) -> None:
    assert dump(parse(text.encode()), dialect, compact=compact) == text.encode()


@pytest.mark.parametrize(
    ("dialect", "compact", "text"),
    [
        ("4.9", False, FASTJSON_1), ("5.3", False, FASTJSON_1), ("5.4", False, FASTJSON_2),
        ("5.3", True, FASTJSON_1_COMPACT), ("5.4", True, FASTJSON_2_COMPACT),
    ],
)  # fmt: skip
def test_texts_of_both_libraries(dialect: Dialect, compact: bool, text: str) -> None:
    document = parse(text.encode())
    assert dump(document, dialect, compact=compact) == text.encode()
    resolved = resolve(document)
    if not compact:
        assert resolved == OBJECT and list(resolved) == list(OBJECT)


def test_from_one_dialect_to_the_other() -> None:
    assert dump(parse(FASTJSON_1), "5.4") == FASTJSON_2.encode()
    assert dump(parse(FASTJSON_1), "5.4", compact=True) == FASTJSON_2_COMPACT.encode()


def test_consumer_offsets_of_the_specification() -> None:
    document = {"offsetTable": {"TopicTest@g1": {0: 250, 1: 251}}}
    old = b'{\n\t"offsetTable":{\n\t\t"TopicTest@g1":{0:250,1:251\n\t\t}\n\t}\n}'
    new = b'{\n\t"offsetTable":{\n\t\t"TopicTest@g1":{\n\t\t\t0:250,\n\t\t\t1:251\n\t\t}\n\t}\n}'
    assert [dump(document, dialect) for dialect in ("4.9", "5.3", "5.4")] == [old, old, new]
    assert parse(old) == parse(new) == document
    quoted = parse(b'{"offsetTable":{"TopicTest@g1":{"0":250,"1":251}}}')
    expected = {("TopicTest", "g1"): {0: 250, 1: 251}}
    assert config_json.consumer_offsets(document) == config_json.consumer_offsets(quoted) == expected


def test_references() -> None:
    document = parse(REFERENCES)
    assert dump(document, "5.3") == REFERENCES.encode()
    resolved = resolve(document)
    assert resolved == {"a-b.c": {"x": 1}, "l": [{"x": 1}], "im": {7: {"y": 1}}, "again": {"y": 1}}
    assert b"$ref" not in dump(document, "5.4")


def test_a_reference_with_escapes() -> None:
    escaped = REFERENCES.replace("$ref", "\\u0024ref")
    assert "$ref" not in escaped
    assert resolve(parse(escaped)) == resolve(parse(REFERENCES)) != parse(REFERENCES)


def test_a_document_without_references_is_not_copied() -> None:
    document = parse('{"a":{"ref":"$.b"},"b":1}')
    assert resolve(document) is document
    assert resolve({**document, "c": {"$ref": "$.b"}})["c"] == 1


@pytest.mark.parametrize("text", [
    '{"a":{"$ref":"$.a"}}', '{"a":{"b":{"$ref":"$"}}}', '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
    '{"a":{"$ref":"$.b"}}', '{"a":{"$ref":"@"}}', '{"a":{"$ref":".."}}', '{"a":{"$ref":"$.b["},"b":[]}',
    '{"a":{"$ref":"$.b[0]"},"b":[]}', '{"a":{"$ref":"$.b.c"},"b":1}', '{"a":{"$ref":"$.b.c"},"b":"x"}',
])  # fmt: skip
def test_bad_references(text: str) -> None:
    with pytest.raises(FormatError):
        resolve(parse(text))


def test_references_do_not_multiply_the_work() -> None:
    levels = ",".join(f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 40))
    document = parse('{"a0":[1],' + levels + "}")
    assert resolve(document)["a1"] == [[1], [1]]
    with pytest.raises(FormatError):
        dump(document, "5.4")


@pytest.mark.parametrize(("text", "document"), [
    ("\ufeff{}", {}), ('{"a":1,}', {"a": 1}), ('{"a":[1,]}', {"a": [1]}), ('{/*x*/"a":1}', {"a": 1}),
    ('// c\n{"a":1}', {"a": 1}), ('{"a":"x\ny"}', {"a": "x\ny"}), ('{"a":1,"a":2}', {"a": 2}),
    (' {"a" :1,\n "b" : -2} ', {"a": 1, "b": -2}), ("null", None),
    ('{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}),
])  # fmt: skip
def test_what_both_libraries_accept(text: str, document: Any) -> None:
    assert parse(text) == document


@pytest.mark.parametrize("text", [
    "", " ", "{", "[1", '{"a":1', '{"a"}', '{"a":}', "{,}", "[,1]", '{"a":1]', '["a":1]', '{"a":1}x', "{} {}",
    '{"a":TRUE}', '{"a":tru}', '{"a":"x}', '{"a":"\\x"}', "{1.5:1}", "}", ":", "/*",
    '{"a":1e999}', '{"a":NaN}',
    '{"a":' + "9" * 41 + "}", "{true:1}",
])  # fmt: skip
def test_texts_that_are_no_document(text: str) -> None:
    with pytest.raises(FormatError):
        parse(text)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("[" * 64 + "]" * 64) is not None
    with pytest.raises(FormatError, match="levels"):
        parse("[" * 65 + "]" * 65)
    with pytest.raises(FormatError):
        parse("[" * 1_000_000)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(FormatError):
        dump(deep, "5.3")
    monkeypatch.setattr(fastjson, "SIZE_LIMIT", 10)
    with pytest.raises(FormatError, match="bytes"):
        parse(b"[1,2,3,4,5]")
    monkeypatch.setattr(fastjson, "VALUE_LIMIT", 3)
    with pytest.raises(FormatError, match="values"):
        parse(b"[1,2,3]")


@pytest.mark.parametrize("text", ['"\\"' * 100_000, '{"' + '\\"' * 100_000, "/*" * 100_000,
                                  "{" + "," * 100_000,
                                  "1" * 1_000_000, " " * 1_000_000 + "x", '{"a":' * 100_000])  # fmt: skip
def test_long_bad_texts_end_at_once(text: str) -> None:
    with pytest.raises(FormatError):
        parse(text)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1),
                    st.floats(allow_nan=False, allow_infinity=False),
                    TEXTS)  # fmt: skip
KEYS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), TEXTS)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4))
)


@given(DOCUMENTS, st.sampled_from(["4.9", "5.3", "5.4"]))
def test_documents_round_trip(document: Any, dialect: Dialect) -> None:
    data = dump(document, dialect)
    again = parse(data)
    assert again == document
    assert dump(again, dialect) == data


@given(DOCUMENTS, st.sampled_from(["4.9", "5.4"]))
def test_compact_text_is_standard_json(document: Any, dialect: Dialect) -> None:
    json.loads(dump(document, dialect, compact=True), strict=dialect == "4.9")


@given(st.recursive(SCALARS, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4),
)))  # fmt: skip
def test_standard_json_reads_the_same(document: Any) -> None:
    assert parse(json.dumps(document)) == document


ACCESSORS = [
    config_json.topics, config_json.subscription_groups, config_json.consumer_offsets,
    config_json.delay_offsets, config_json.filters, config_json.data_version,
]  # fmt: skip
FRAGMENTS = st.lists(st.one_of(st.sampled_from(
    ['{', '}', '[', ']', ',', ':', '0', '-1', '"', '"a"', '\\', '"$ref"', '"$.a"', 'null', 'true', '/*',
     '*/', '//',      '"offsetTable"', '"topicConfigTable"', '"dataVersion"', '"T@g"', '\t', '1.5e3'],
), st.text(max_size=3))).map("".join)  # fmt: skip


@given(st.one_of(st.binary(max_size=60), FRAGMENTS.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_give_a_document_or_a_format_error(data: bytes) -> None:
    try:
        document = parse(data)
    except FormatError as error:
        assert str(error)
        return
    for accessor in ACCESSORS:
        try:
            accessor(document)
        except FormatError as error:
            assert str(error)


@given(st.sampled_from(ACCESSORS), st.one_of(DOCUMENTS, st.dictionaries(st.sampled_from(
    ["offsetTable", "topicConfigTable", "subscriptionGroupTable", "filterDataByTopic", "dataVersion",
     "lmqOffsetTable"],
), DOCUMENTS)))  # fmt: skip
def test_any_document_gives_a_value_or_a_format_error(accessor: Any, document: Any) -> None:
    try:
        accessor(document)
    except FormatError as error:
        assert str(error)


def test_a_lone_surrogate_is_written_as_java_does() -> None:
    assert dump(parse(b'"\\ud800x"'), "5.4") == b'"?x"'


# what the documents mean


def test_topics() -> None:
    assert config_json.topics(parse(TOPICS_49)) == {"pubOrder": TopicConfig("pubOrder", 4, 4)}
    found = config_json.topics(parse(TOPICS_53))
    assert found["pubBatchCQ"].is_batch and not found["pubBatch"].is_batch
    assert found["pubBatchCQ"].attributes == {"queue.type": "BatchCQ"}
    assert (found["pubBatch"].read_queue_nums, found["pubBatch"].perm) == (16, 6)  # left out: Java's defaults


def test_subscription_groups() -> None:
    group = '{"consumeEnable":false,"groupName":"g","retryMaxTimes":3,"groupRetryPolicy":{}}'
    assert config_json.subscription_groups(parse(f'{{"subscriptionGroupTable":{{"g":{group}}}}}')) == {
        "g": SubscriptionGroup("g", consume_enable=False, retry_max_times=3)
    }


def test_consumer_and_delay_offsets() -> None:
    offsets = config_json.consumer_offsets(parse(BROKER_FILES[2][2]))
    assert offsets["pub-Topic_Four", "pub_group_four"] == {0: 37, 1: 48, 2: 0, 3: 64}
    assert offsets["%RETRY%pub_group_tag", "pub_group_tag"] == {0: 0}
    assert config_json.delay_offsets(parse(BROKER_FILES[1][2])) == {1: 17, 2: 5, 3: 7}
    light = parse('{"offsetTable":{"odd":{}},"lmqOffsetTable":{"%LMQ%a@g":7}}')
    assert config_json.consumer_offsets(light) == {("odd", ""): {}, ("%LMQ%a", "g"): {0: 7}}


def test_filters() -> None:
    text = """{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,
        "bitPos":[1,5]},"bornTime":10,"clientVersion":433,"consumerGroup":"g","dead":false,"deadTime":0,
        "expression":"a > 1","expressionType":"SQL92","topic":"T"}},"topic":"T"}}}"""
    assert config_json.filters(parse(text)) == {
        ("T", "g"): ConsumerFilter("T", "g", "a > 1", "SQL92", 10, 0, 433, 112, (1, 5))
    }


@pytest.mark.parametrize(("text", "version"), [
    (TOPICS_49, DataVersion(21, 1795251076638, None, "timestamp")),
    (BROKER_FILES[3][2], DataVersion(3, 1795251900775, 0, "timestamp")),
    ('{"dataVersion":{"counter":1,"timestatmp":5}}', DataVersion(1, 5, None, "timestatmp")),
    ('{"offsetTable":{}}', None),
])  # fmt: skip
def test_data_version(text: str, version: DataVersion | None) -> None:
    assert config_json.data_version(parse(text)) == version


def test_the_old_spelling_is_written_as_found() -> None:
    text = b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestatmp":5\n\t}\n}'
    assert dump(parse(text), "4.9") == text


@pytest.mark.parametrize(("accessor", "text"), [
    (config_json.topics, '{"topicConfigTable":{"T":1}}'),
    (config_json.topics, '{"topicConfigTable":{"T":{"perm":"x"}}}'),
    (config_json.topics, "[]"),
    (config_json.consumer_offsets, '{"offsetTable":{"T@g":{"x":1}}}'),
    (config_json.delay_offsets, '{"offsetTable":{1:null}}'),
    (config_json.delay_offsets, '{"offsetTable":{1:9223372036854775808}}'),
    (config_json.consumer_offsets, '{"offsetTable":{"T@g":{0:null}}}'),
    (config_json.consumer_offsets, '{"lmqOffsetTable":{"%LMQ%a@g":null}}'),
    (config_json.filters, '{"filterDataByTopic":{"T":{"groupFilterData":1}}}'),
    (config_json.filters,
     '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitPos":1}}}}}}'),
    (config_json.data_version, '{"dataVersion":[]}'),
])  # fmt: skip
def test_wrong_types_are_format_errors(accessor: Any, text: str) -> None:
    with pytest.raises(FormatError):
        accessor(parse(text))


def test_numbers_may_be_quoted() -> None:
    assert config_json.topics(parse('{"topicConfigTable":{"T":{"perm":"4"}}}'))["T"].perm == 4


GOOD, OTHER, BAD = b'{"a":1}', b'{"a":2}', b'{"a":'


@pytest.mark.parametrize(("file", "bak", "document", "source", "errors"), [
    (GOOD, OTHER, {"a": 1}, "file", (False, False)),
    (GOOD, BAD, {"a": 1}, "file", (False, False)),
    (None, OTHER, {"a": 2}, "bak", (False, False)),
    (b"", OTHER, {"a": 2}, "bak", (False, False)),
    (BAD, OTHER, {"a": 2}, "bak", (True, False)),
    (b"[]", OTHER, {"a": 2}, "bak", (True, False)),
    (BAD, None, {}, "none", (True, False)),
    (BAD, b"", {}, "none", (True, False)),
    (None, None, {}, "none", (False, False)),
    (None, BAD, {}, "failed", (False, True)),
    (BAD, BAD, {}, "failed", (True, True)),
    (b"null", OTHER, {}, "file", (False, False)),
    (b" ", OTHER, {"a": 2}, "bak", (True, False)),
])  # fmt: skip
def test_a_file_and_its_bak(
    file: bytes | None, bak: bytes | None, document: Any, source: str, errors: tuple[bool, bool]
) -> None:
    found: Loaded = config_json.load_with_bak("other.json", file, bak)
    assert (found.document, found.source) == (document, source)
    assert (found.file_error is not None, found.bak_error is not None) == errors


@pytest.mark.parametrize(("name", "text", "error"), [
    ("topics.json", '{"topicConfigTable":[]}', "topicConfigTable is not a JSON object"),
    ("topics.json", '{"topicConfigTable":null}', "topicConfigTable is not a JSON object"),
    ("topics.json", '{"dataVersion":null}', "dataVersion is not a JSON object"),
    ("topics.json", '{"topicConfigTable":{"T":null}}', "T is not a JSON object"),
    ("topics.json", '{"topicConfigTable":{"T":{"readQueueNums":"x"}}}', 'is not an integer: "x"'),
    ("topics.json", '{"topicConfigTable":{"T":{"perm":3000000000}}}', "perm is not a Java int: 3000000000"),
    ("topics.json", '{"topicConfigTable":{"T":{"order":"x"}}}', 'order is not a boolean: "x"'),
    ("topics.json", '{"topicConfigTable":{"T":{"topicFilterType":true}}}', "topicFilterType is not"),
    ("topics.json", '{"topicConfigTable":{"T":{"attributes":5}}}', "attributes is not a JSON object"),
    ("topics.json", '{"dataVersion":{"counter":"x"}}', 'counter is not an integer: "x"'),
    ("consumerOffset.json", '{"offsetTable":null}', "offsetTable is not a JSON object"),
    ("consumerOffset.json", '{"offsetTable":{"T@g":[1]}}', "the offset table of T@g is not a JSON object"),
    ("consumerOffset.json", '{"offsetTable":{"T@g":{0:""}}}', 'offset 0 of T@g is not an integer: ""'),
    ("consumerOffset.json", '{"offsetTable":{"T@g":{1:9223372036854775808}}}',
     "offset 1 of T@g is not a Java long: 9223372036854775808"),
    ("consumerOffset.json", '{"groupTopicMap":5}', "groupTopicMap is not a JSON object"),
    ("delayOffset.json", '{"offsetTable":null}', "the offset table is not a JSON object"),
    ("delayOffset.json", '{"offsetTable":{1:null}}', "offset 1 is not an integer: null"),
    ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":"x"}}', "g is not a JSON object"),
    ("subscriptionGroup.json", '{"forbiddenTable":{"g":{"t":"x"}}}', "forbiddenTable of g and t"),
    ("consumerFilter.json", '{"filterDataByTopic":{"T":5}}', "T is not a JSON object"),
    ("timermetrics", '{"timingCount":5}', "timingCount is not a JSON object"),
])  # fmt: skip
def test_json_of_wrong_types_is_not_loaded(name: str, text: str, error: str) -> None:
    """As by the three brokers' own fromJson or decode, which throws for each; the .bak counts then."""
    found = config_json.load_with_bak(name, text.encode(), b"{}")
    assert found.source == "bak" and error in str(found.file_error)
    assert config_json.load_with_bak(name, text.encode(), text.encode()).source == "failed"
    assert config_json.load_with_bak("other.json", text.encode(), b"{}").source == "file"


def test_values_of_other_types_that_brokers_take() -> None:
    """As their own fromJson, executed: texts, booleans and fractions as numbers, numbers as booleans."""
    values = '"readQueueNums":"8","writeQueueNums":1.5,"perm":true,"order":"true","topicFilterType":1'
    text = f'{{"topicConfigTable":{{"T":{{{values},"topicSysFlag":"","attributes":{{"a":1}}}},"U":{{}}}}}}'
    found = config_json.load_with_bak("topics.json", text.encode(), None)
    assert found.source == "file"
    assert config_json.topics(found.document) == {
        "T": TopicConfig("T", 8, 1, 1, "MULTI_TAG", 0, True, {"a": "1"}), "U": TopicConfig("U"),
    }  # fmt: skip
    for name, text in (
        ("consumerOffset.json", '{"offsetTable":{"T@g":{"0":"-5",1:1.5,2:1e3}}}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":{"brokerId":3000000000,"groupName":5}}}'),
        (
            "consumerFilter.json",
            '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"clientVersion":1795431308564}}}}}',
        ),
    ):
        assert config_json.load_with_bak(name, text.encode(), None).source == "file", name


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
_PIECES = st.sampled_from(
    ["NaN", "-Infinity", "1e999", "1" * 41, "0.", "-", ",]", ",}", "/**/", "{1:2}", "\f", "\x01", "\\ud800",
     '"\\', "[" * 70, "[" * 63 + "]" * 63, '{"a":1,"a":[]}', "\ufeff", "01", "'a'", "tru"]
)  # fmt: skip


def _outcome(read: Any, text: str) -> Any:
    try:
        return json.dumps(read(text))
    except FormatError as error:
        return error.message


@given(_VALUES, st.lists(st.tuples(st.integers(0, 200), _PIECES), max_size=2), st.booleans())
def test_standard_text_reads_the_same_as_token_by_token(
    value: Any, pieces: list[tuple[int, str]], ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    for place, piece in pieces:
        text = text[:place] + piece + text[place:]
    assert _outcome(parse, text) == _outcome(fastjson.by_tokens, text.removeprefix("\ufeff"))


def test_limits_hold_for_standard_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for depth in (fastjson.DEPTH_LIMIT, fastjson.DEPTH_LIMIT + 1):
        text = "[" * depth + "]" * depth
        assert _outcome(parse, text) == _outcome(fastjson.by_tokens, text)
    monkeypatch.setattr(fastjson, "VALUE_LIMIT", 10)
    for count in (9, 10):
        text = json.dumps([0] * count)
        assert _outcome(parse, text) == _outcome(fastjson.by_tokens, text)
    assert "more than 10 values" in _outcome(parse, text)


def test_a_large_file_is_judged_by_its_name_and_its_text() -> None:
    """Its document is remembered."""
    table = {f"T{number}": {"perm": 6, "readQueueNums": 8} for number in range(4_000)}
    text = dump({"topicConfigTable": table}, "5.4")
    wrong = dump({"topicConfigTable": {**table, "T7": {"perm": "x"}}}, "5.4")
    assert len(text) > 1 << 16
    for _ in range(2):
        assert config_json.load_with_bak("topics.json", text, None).document["topicConfigTable"] == table
        assert config_json.load_with_bak("topics.json", wrong, wrong).source == "failed"
        assert config_json.load_with_bak("topics.json", wrong, text).source == "bak"
        assert config_json.load_with_bak("other.json", wrong, None).source == "file"
