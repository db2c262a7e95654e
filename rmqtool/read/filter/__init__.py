"""The broker's filter language over message properties (SQL92), as consumers subscribe with it.

    from rmqtool.read.filter import parse

    parse("color = 'red' AND size > 10").matches({"color": "red", "size": "12"})  # True

    tokens.py    text -> tokens
    parser.py    tokens -> expression: own grammar, a limit on depth, nothing is handed to eval
    nodes.py     what an operand may be, and what each operator does with it
    values.py    Java's comparison and conversion of strings, numbers and booleans

Every property is a string. It is compared with a number as the number that it spells; what spells
none makes the broker's evaluation fail, and the message does not match whatever the rest says.
Comparisons with a property that a message does not have are unknown (None), but `a = b` is true
where both are missing and false where only `b` is.

Source: SelectorParser, the classes of org.apache.rocketmq.filter.expression, ExpressionMessageFilter.
"""

from __future__ import annotations

from rmqtool.errors import FilterError
from rmqtool.read.filter.nodes import EvaluationError
from rmqtool.read.filter.parser import DEPTH_LIMIT, Expression, parse

__all__ = ["DEPTH_LIMIT", "EvaluationError", "Expression", "FilterError", "parse"]
