"""The broker's filter language over message properties (SQL92), as consumers subscribe with it.

    from rmqtool.read.filter import parse

    parse("color = 'red' AND size > 10").matches({"color": "red", "size": "12"})  # True

    parser.py    text -> tokens -> expression: own grammar, a limit on depth, no eval
    nodes.py     the operands that an operator accepts, and its evaluation;
                 Java's comparison and conversion of strings, numbers and booleans

Every property is a string. To compare it with a number, the broker parses it; if that fails, the whole
evaluation fails and the message does not match, whatever the rest of the expression says. A comparison
with a property that the message lacks is unknown (None), but `a = b` is true if both are missing and
false if only `b` is.

Source: SelectorParser, the classes of org.apache.rocketmq.filter.expression, ExpressionMessageFilter.
"""

from __future__ import annotations

from rmqtool.errors import FilterError
from rmqtool.read.filter.nodes import EvaluationError
from rmqtool.read.filter.parser import DEPTH_LIMIT, Expression, parse

__all__ = ["DEPTH_LIMIT", "EvaluationError", "Expression", "FilterError", "parse"]
