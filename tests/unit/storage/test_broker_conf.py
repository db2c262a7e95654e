"""broker.conf is read as Java reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.errors import InputError
from rmqtool.storage.broker_conf import parse_properties, read_broker_conf
from tests.support.build_store import write_sparse


class TestBrokerConf:
    def test_properties(self) -> None:
        text = (
            "# comment\n! another\n\n  a = 1 \nb:2\nc 3\nd\\ e=x\\u0041\\ty\n"
            "long=1,\\\n   2\nempty=\na=last\n"
            "odd=trailing\\\\\nnext=\\z\r\nlatin=\xe9\n"
        )
        assert parse_properties(text.encode("iso-8859-1")) == {
            "a": "last", "b": "2", "c": "3", "d e": "xA\ty", "long": "1,2", "empty": "",
            "odd": "trailing\\", "next": "z", "latin": "é",
        }  # fmt: skip

    def test_values(self, tmp_path: Path) -> None:
        path = tmp_path / "broker.conf"
        path.write_text("n = 12\nyes= True\npaths=/a, /b ,\nempty=\ntext=a \n")
        conf = read_broker_conf(path)
        assert (conf.integer("n"), conf.integer("none"), conf.text("empty")) == (12, None, None)
        assert (conf.flag("yes"), conf.flag("n"), conf.flag("none"), conf.text("text")) == (
            True,
            False,
            False,
            "a",
        )
        assert conf.flag("none", default=True) and not conf.flag("empty", default=True)
        assert conf.paths("paths") == (Path("/a"), Path("/b"))

    @pytest.mark.parametrize(
        ("text", "integer", "long", "flag"),
        [("12", 12, 12, False), ("12 ", None, None, False), ("+12", 12, 12, False), ("-5", -5, -5, False),
         ("3000000000", None, 3_000_000_000, False), ("9" * 19, None, None, False), ("1k", None, None, False),
         ("0" * 30 + "7", 7, 7, False), ("", None, None, False), ("TRUE", None, None, True),
         ("true ", None, None, False)],
    )  # fmt: skip
    def test_values_as_a_broker_takes_them(
        self, tmp_path: Path, text: str, integer: int | None, long: int | None, flag: bool
    ) -> None:
        """What MixAll#properties2Object of 4.9.7 and 5.4.0 gave; None is the default."""
        path = tmp_path / "broker.conf"
        path.write_text(f"n= {text}\n")
        conf = read_broker_conf(path)
        assert (conf.integer("n"), conf.integer("n", bits=64), conf.flag("n")) == (integer, long, flag)
        assert conf.ignored("n") == (text if integer is None else None)
        assert conf.ignored("n", bits=64) == (text if long is None else None)
        assert conf.ignored("none") is None

    def test_where_a_value_is_that_a_broker_ignores(self, tmp_path: Path) -> None:
        """Of two equal names the last counts; a joined line counts as its first."""
        path = tmp_path / "broker.conf"
        path.write_text("# sizes\na=1\n\nlong=1\\\n2\nb=\na=1k\n")
        conf = read_broker_conf(path)
        assert {name: conf.lines[name] for name in ("a", "long", "b")} == {"a": 7, "long": 4, "b": 6}
        assert conf.why_ignored("a") == f"{path} line 7: a='1k' is not an integer"
        assert conf.why_ignored("b") == f"{path} line 6: b has no value"
        assert conf.why_ignored("long") is None and conf.why_ignored("none") is None

    def test_a_huge_file_is_none(self, tmp_path: Path) -> None:
        write_sparse(tmp_path / "conf", 1 << 21)
        with pytest.raises(InputError, match="too large"):
            read_broker_conf(tmp_path / "conf")
