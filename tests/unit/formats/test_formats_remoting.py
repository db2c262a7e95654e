"""Remoting frames: bytes that the real RemotingCommand made, both header types, any bytes, any pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import remoting
from rmqtool.formats.remoting import JSON, ROCKETMQ, Command, Frames

REQUEST_FIELDS = ("topic", "queueId", "queueOffset", "subscription")
REQUEST = Command(
    11,
    {
        "topic": "Ordersé中",
        "queueId": "3",
        "queueOffset": "9007199254740993",
        "subscription": 'TagA || "b"',
    },
    b"\x00\x01\xff",
    opaque=77,
    flag=2,
    remark="why\nü",
    language="JAVA",
)
ANSWER = Command(19, opaque=-5, flag=1, language="JAVA")
# RemotingCommand#encode of both versions: (version, header type, order of the fields, request, answer)
GOLDEN = [
    (407, JSON, (1, 0, 2, 3),
     "000000ed000000e67b22636f6465223a31312c226578744669656c6473223a7b2271756575654964223a2233222c22746f706963"
     "223a224f7264657273c3a9e4b8ad222c2271756575654f6666736574223a2239303037313939323534373430393933222c227375"
     "62736372697074696f6e223a2254616741207c7c205c22625c22227d2c22666c6167223a322c226c616e6775616765223a224a41"
     "5641222c226f7061717565223a37372c2272656d61726b223a227768795c6ec3bc222c2273657269616c697a655479706543757"
     "272656e74525043223a224a534f4e222c2276657273696f6e223a3430377d0001ff",
     "00000065000000617b22636f6465223a31392c22666c6167223a312c226c616e6775616765223a224a415641222c226f70617175"
     "65223a2d352c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a34303"
     "77d"),
    (493, JSON, (1, 3, 0, 2),
     "000000ed000000e67b22636f6465223a31312c226578744669656c6473223a7b2271756575654964223a2233222c227375627363"
     "72697074696f6e223a2254616741207c7c205c22625c22222c22746f706963223a224f7264657273c3a9e4b8ad222c2271756575"
     "654f6666736574223a2239303037313939323534373430393933227d2c22666c6167223a322c226c616e6775616765223a224a41"
     "5641222c226f7061717565223a37372c2272656d61726b223a227768795c6ec3bc222c2273657269616c697a65547970654375"
     "7272656e74525043223a224a534f4e222c2276657273696f6e223a3439337d0001ff",
     "00000065000000617b22636f6465223a31392c22666c6167223a312c226c616e6775616765223a224a415641222c226f70617175"
     "65223a2d352c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a34393"
     "37d"),
    (407, ROCKETMQ, (1, 0, 2, 3),
     "000000840100007d000b0001970000004d00000002000000067768790ac3bc000000620007717565756549640000000133000574"
     "6f7069630000000b4f7264657273c3a9e4b8ad000b71756575654f6666736574000000103930303731393932353437343039393"
     "3000c737562736372697074696f6e0000000b54616741207c7c202262220001ff",
     "00000019010000150013000197fffffffb000000010000000000000000"),
    (493, ROCKETMQ, (1, 3, 0, 2),
     "000000840100007d000b0001ed0000004d00000002000000067768790ac3bc000000620007717565756549640000000133000c73"
     "7562736372697074696f6e0000000b54616741207c7c202262220005746f7069630000000b4f7264657273c3a9e4b8ad000b7175"
     "6575654f66667365740000001039303037313939323534373430393933"
     "0001ff",
     "000000190100001500130001edfffffffb000000010000000000000000"),
]  # fmt: skip

TEXT = st.text(max_size=20)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
COMMANDS = st.builds(
    Command,
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.dictionaries(TEXT, TEXT, max_size=5),
    st.binary(max_size=40),
    opaque=INT32,
    flag=INT32,
    remark=st.none() | st.text(min_size=1, max_size=20),
    version=st.integers(-(1 << 15), (1 << 15) - 1),
    language=st.sampled_from(remoting.LANGUAGES),
    header_type=st.sampled_from((JSON, ROCKETMQ)),
)


def decoded(data: bytes) -> list[Command]:
    """The commands in a stream that is given at once."""
    return list(Frames().feed(data))


@pytest.mark.parametrize(("version", "header_type", "order", "request_text", "answer_text"), GOLDEN)
def test_golden(
    version: int, header_type: int, order: tuple[int, ...], request_text: str, answer_text: str
) -> None:
    """Both ways, byte for byte: Java writes the fields in the order of its HashMap."""
    fields = {REQUEST_FIELDS[place]: REQUEST.fields[REQUEST_FIELDS[place]] for place in order}
    request = replace(REQUEST, fields=fields, version=version, header_type=header_type)
    answer = replace(ANSWER, version=version, header_type=header_type)
    assert decoded(bytes.fromhex(request_text + answer_text)) == [request, answer]
    assert remoting.encode(request).hex() == request_text
    assert remoting.encode(answer).hex() == answer_text
    assert request.is_one_way and not request.is_response
    assert answer.is_response and not answer.is_one_way


def test_the_declaration_reads_a_field() -> None:
    """As construct parses it: the name and value that the codec wrote."""
    header = remoting.encode_header(Command(1, {"né": "中"}, header_type=ROCKETMQ))
    found = remoting.FIELD.parse(header[remoting.HEADER.size + 4 :])
    assert (found.name.decode(), found.value.decode()) == ("né", "中")
    assert (found.name_length, found.value_length) == (3, 3)


def test_an_answer_belongs_to_its_request() -> None:
    request = replace(REQUEST, header_type=ROCKETMQ)
    answer = request.answer(22, "nothing", {"offset": "1"}, b"x")
    assert (answer.opaque, answer.flag, answer.header_type) == (77, 1, ROCKETMQ)
    assert (answer.code, answer.remark, answer.fields, answer.body) == (22, "nothing", {"offset": "1"}, b"x")


@given(st.lists(COMMANDS, max_size=3), st.integers(1, 50))
def test_commands_come_back_out_of_any_pieces(commands: list[Command], step: int) -> None:
    data = b"".join(map(remoting.encode, commands))
    frames = Frames()
    found = [each for start in range(0, len(data), step) for each in frames.feed(data[start : start + step])]
    assert found == commands
    assert frames.pending_bytes == 0


@given(COMMANDS, st.data())
def test_an_incomplete_frame_waits(command: Command, data: st.DataObject) -> None:
    whole = remoting.encode(command)
    frames = Frames()
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert list(frames.feed(whole[:cut])) == []
    assert frames.pending_bytes == cut
    assert list(frames.feed(whole[cut:])) == [command]


@given(COMMANDS, st.data())
def test_changed_bytes_give_commands_or_a_format_error(command: Command, data: st.DataObject) -> None:
    changed = bytearray(remoting.encode(command))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(4, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        for found in decoded(bytes(changed)):
            assert isinstance(found.code, int) and all(map(str.__instancecheck__, found.fields.values()))
    except FormatError as error:
        assert str(error)


@pytest.mark.parametrize("header_type", [JSON, ROCKETMQ, 2])
@given(data=st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_header_gives_a_command_or_a_format_error(header_type: int, data: bytes) -> None:
    try:
        remoting.decode_header(data, header_type)
    except FormatError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("header", "code", "fields"),
    [
        ('{"code":11,"opaque":1}', 11, {}),
        ('{"code":11,"opaque":1,"extFields":null,"flag":0,"language":"KLINGON"}', 11, {}),
        ('{"opaque":1,"code":200050,"extFields":{"a":1,"b":true,"c":null,"d":"x"}}', 200050,
         {"a": "1", "b": "true", "d": "x"}),
        ('{"code":34,"opaque":1,"extFields":{},"unknown":[{}]}', 34, {}),
    ],
)  # fmt: skip
def test_json_headers_of_other_clients(header: str, code: int, fields: dict[str, str]) -> None:
    """Keys may lack, and numbers need not be texts."""
    found = remoting.decode_header(header.encode(), JSON)
    assert (found.code, found.fields) == (code, fields)
    assert found.language == "OTHER"


@pytest.mark.parametrize(
    "header",
    ['{"opaque":1}', '{"code":1}', '{"code":"1","opaque":1}', '{"code":4294967296,"opaque":1}', "[1]", "",
     '{"code":true,"opaque":1}', '{"code":1,"opaque":1,"extFields":[]}', '{"code":1.0,"opaque":1}',
     '{"code":1,"opaque":1,"extFields":{"a":{}}}', "[" * 60_000, "9" * 60_000],
)  # fmt: skip
def test_refused_json_headers(header: str) -> None:
    with pytest.raises(FormatError):
        remoting.decode_header(header.encode(), JSON)


HEADER_LENGTHS = [(4, 1), (10, 7), (1 << 20, 1 << 17), (100, (1 << 24) - 1)]


@pytest.mark.parametrize(
    ("length", "mark"),
    [(-1, 0), (0, 0), (3, 0), ((16 << 20) + 1, 0), (0x7FFFFFFF, 0), (1000, 2 << 24), *HEADER_LENGTHS],
)
def test_a_frame_above_a_limit_is_refused_before_it_has_come(length: int, mark: int) -> None:
    with pytest.raises(FormatError):
        decoded(remoting.HEAD.codec.pack(length, mark) if length != -1 else b"\xff" * 8)


def test_commands_before_a_bad_frame_are_returned() -> None:
    frames = Frames().feed(remoting.encode(REQUEST) + b"GET / HTTP/1.1\r\n")
    assert next(frames) == REQUEST
    with pytest.raises(FormatError):
        next(frames)


@pytest.mark.parametrize(
    "command",
    [Command(200_050, header_type=ROCKETMQ), Command(1, version=1 << 15, header_type=ROCKETMQ),
     Command(1, {"n" * (1 << 15): ""}, header_type=ROCKETMQ), Command(1, body=bytes(16 << 20)),
     Command(1, header_type=5), Command(1, {"a": "x" * (1 << 24)})],
    ids=["code", "version", "name", "body", "type", "header"],
)  # fmt: skip
def test_what_a_frame_cannot_hold_is_refused(command: Command) -> None:
    with pytest.raises(FormatError):
        remoting.encode(command)
