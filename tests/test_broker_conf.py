"""broker.conf is read as Java reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.errors import FormatError, InputError
from rmqtool.store.broker_conf import parse_properties, read_broker_conf
from tests.build_store import write_sparse


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
        path.write_text("n = 12 \nbad=1k\nyes= True\npaths=/a, /b ,\nempty=\n")
        conf = read_broker_conf(path)
        assert (conf.integer("n"), conf.integer("none"), conf.text("empty")) == (12, None, None)
        assert (conf.flag("yes"), conf.flag("n"), conf.flag("none")) == (True, False, False)
        assert conf.paths("paths") == (Path("/a"), Path("/b"))
        with pytest.raises(FormatError, match="bad='1k'"):
            conf.integer("bad")

    def test_a_huge_file_is_none(self, tmp_path: Path) -> None:
        write_sparse(tmp_path / "conf", 1 << 21)
        with pytest.raises(InputError, match="too large"):
            read_broker_conf(tmp_path / "conf")
