"""Arithmetic over named columns, as a user writes it: 'power - 0.1*abs(u_1)'.

The text is parsed and walked, never executed. Everything is float64, so that no number, however
it is written, takes more than eight bytes or more than one operation.
"""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.errors import UserError

Value = NDArray[np.float64]

_BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Mod: np.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
# With the number of their arguments; min and max take two or more, each row by itself: over a
# column they would depend on how many rows are read at a time.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int | None]] = {
    "abs": (np.abs, 1),
    "sqrt": (np.sqrt, 1),
    "exp": (np.exp, 1),
    "log": (np.log, 1),
    "sin": (np.sin, 1),
    "cos": (np.cos, 1),
    "tanh": (np.tanh, 1),
    "clip": (np.clip, 3),
    "where": (np.where, 3),
    "min": (lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)), None),
    "max": (lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)), None),
}
_LONGEST = 10_000
_ALLOWED = (
    "numbers, columns, + - * / ** %, comparisons, and, or, not, &, |, ~ and the functions "
    f"{', '.join(_FUNCTIONS)}"
)


def evaluate(text: str, columns: Mapping[str, NDArray[Any]]) -> Value:
    """One number per row; conditions count as 0 or 1. Rows of a division by zero are not finite.

    A name that is no Python name stands in backticks: `` `T in` * 2``.

    Raises:
        UserError: if the text is no such expression, or a name in it is no column of numbers.
    """
    tree, quoted = _parsed(text)
    try:
        # Overflow and 0/0 are the caller's to refuse, who knows the rows.
        with np.errstate(all="ignore"):
            value = _Walker(text, columns, quoted).value(tree)
    except RecursionError as error:
        raise _too_long() from error
    length = len(next(iter(columns.values()), ()))
    return np.array(np.broadcast_to(value, (length,)))


def names(text: str) -> set[str]:
    """The columns that the expression uses.

    Raises:
        UserError: if the text cannot be parsed.
    """
    tree, quoted = _parsed(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {quoted.get(node.id, node.id) for node in found if id(node) not in called}


def unknown_name(name: str, known: Iterable[str]) -> str:
    """ "there is no column 'spede'; did you mean 'speed'? The columns are …", for messages."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"there is no column '{name}'{hint} The columns are {listed(known)}."


def listed(found: Iterable[str], limit: int = 20) -> str:
    quoted = [f"'{name}'" for name in found]
    more = [f"and {len(quoted) - limit} more"] if len(quoted) > limit else []
    return ", ".join(quoted[:limit] + more) or "none"


def _parsed(text: str) -> tuple[ast.expr, dict[str, str]]:
    """The syntax tree, and the columns that stood in backticks by their names in the tree."""
    quoted: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        if match[0].isascii() and not match[1]:
            return match[0]
        quoted[f"_column_{len(quoted)}_"] = match[1] or match[0]
        return f" _column_{len(quoted) - 1}_ "

    if len(text) > _LONGEST:
        raise _too_long()
    # Names beyond ASCII too: Python would normalise them, and 'µ' would be another letter.
    plain = re.sub(r"`([^`]+)`|[^\W\d]\w*", placeholder, text)
    try:
        with warnings.catch_warnings():
            # Python warns of what it may refuse one day, such as "1if x": of no use to the user.
            warnings.simplefilter("ignore")
            return ast.parse(plain.strip(), mode="eval").body, quoted
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"'{text}' is no expression: {getattr(error, 'msg', error)}. Write it with {_ALLOWED}; "
            "a column name with spaces or signs stands in `backticks`."
        ) from error
    except (RecursionError, MemoryError) as error:
        raise _too_long() from error


def _too_long() -> UserError:
    return UserError("The expression is too long; make it a column of the data instead.")


class _Walker:
    def __init__(
        self, text: str, columns: Mapping[str, NDArray[Any]], quoted: Mapping[str, str]
    ) -> None:
        self.text, self.columns, self.quoted = text, columns, quoted

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return self._number(number)
            case ast.Name():
                return self._column(self.quoted.get(node.id, node.id))
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                both = ast.And() if isinstance(node.op, ast.BitAnd) else ast.Or()
                return self._joined(both, [node.left, node.right])
            case ast.BoolOp():
                return self._joined(node.op, node.values)
            case ast.BinOp() if type(node.op) in _BINARY:
                return _BINARY[type(node.op)](self.value(node.left), self.value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.value(node.operand)
            case ast.UnaryOp(op=ast.Not() | ast.Invert()):
                return 1.0 - self._condition(node.operand)
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                sides = [self.value(side) for side in (node.left, *node.comparators)]
                holds = [
                    _COMPARISONS[type(op)](left, right)
                    for op, left, right in zip(node.ops, sides, sides[1:], strict=False)
                ]
                return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*holds)), np.float64)
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
                return self._called(name, node.args)
        raise self._refused(f"'{ast.unparse(node)}' is not allowed in it")

    def _number(self, value: float) -> Value:
        try:
            return np.asarray(value, dtype=np.float64)
        except OverflowError as error:
            raise self._refused("a number in it is too large") from error

    def _column(self, name: str) -> Value:
        if name not in self.columns:
            raise UserError(f"In '{self.text}', {unknown_name(name, self.columns)}")
        array = np.asarray(self.columns[name])
        if array.dtype.kind not in "biuf":
            raise self._refused(f"the column '{name}' holds no numbers")
        return array.astype(np.float64)

    def _called(self, name: str, args: list[ast.expr]) -> Value:
        function, arity = _FUNCTIONS[name]
        if len(args) != arity and (arity is not None or len(args) < 2):
            raise self._refused(f"{name} takes {arity or 'two or more'} arguments, not {len(args)}")
        if name == "where":
            return np.where(self._condition(args[0]) == 1, *map(self.value, args[1:]))
        return np.asarray(function(*map(self.value, args)))

    def _joined(self, op: ast.boolop, sides: list[ast.expr]) -> Value:
        function = np.minimum if isinstance(op, ast.And) else np.maximum
        return np.asarray(
            function.reduce(np.broadcast_arrays(*(self._condition(side) for side in sides)))
        )

    def _condition(self, node: ast.expr) -> Value:
        value = self.value(node)
        if not ((value == 0) | (value == 1)).all():
            # Mostly `a > 1 & b < 2`, which Python reads as a > (1 & b) < 2.
            raise self._refused(
                f"'{ast.unparse(node)}' stands where a condition belongs, but is not 0 or 1 in "
                "every row; compare it, and put each comparison in parentheses"
            )
        return value

    def _refused(self, why: str) -> UserError:
        # Placeholders are put back, so that the user reads what was written.
        why = re.sub(r"_column_\d+_", lambda match: f"`{self.quoted.get(match[0], match[0])}`", why)
        return UserError(
            f"The expression '{self.text}' cannot be used: {why}. It may hold {_ALLOWED}."
        )
