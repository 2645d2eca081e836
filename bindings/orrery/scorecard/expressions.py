"""Conditions and formulas of launch scripts as data/serving/launch_settings.csv writes them, and their values.

    ISL=1024 and OSL=1024 and TP<8           (and not: CONC<=32)
    roundup(CONC + ISL + 64, 64); then max(MAX_NUM_TOKENS, 8192)
    CONC<8?CONC:CONC / 8                     MAX_NUM_SEQS or 512 if unset

Names are resolved by the caller. What is not of this small language is never guessed: `NotUnderstood` says why.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable

Value = int | float | bool | str
Names = Callable[[str], Value]  # throws NotUnderstood for a name that it does not know


class NotUnderstood(Exception):
    """The text is outside the language, or names something unknown; the message says what."""


def roundup(value: int, step: int) -> int:
    return -(-value // step) * step


FUNCTIONS: dict[str, Callable[..., Value]] = {"max": max, "min": min, "roundup": roundup, "ceil": math.ceil, "ratio": operator.truediv}
BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of the shell: whole numbers
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
SHELL = (("-gte", ">="), ("-lte", "<="), ("-gt", ">"), ("-lt", "<"), ("-eq", "=="), ("-ge", ">="), ("-le", "<="))


def condition(text: str, names: Names) -> bool:
    """Whether `text` holds; an empty one does. "X (and not: Y; Z) and W" is X and W, and neither Y nor Z."""
    required: list[str] = []
    for part in re.split(r"(\(and not: [^()]*\))", text):
        if part.startswith("(and not: "):
            if any(_value(excluded, names) for excluded in part[len("(and not: ") : -1].split(";")):
                return False
        elif part.strip():
            required.append(part.strip().removeprefix("and ").removesuffix(" and"))
    return all(_value(part, names) for part in required)


def formula(text: str, names: Names, own_name: str = "") -> Value:
    """The number of a formula. "A; then B": B sees what A gave under `own_name`; "A or B if unset": B unless A is known."""
    steps = [step.strip().removeprefix("then ") for step in text.split(";")]
    result = _or_else(steps[0], names)
    for step in steps[1:]:
        before = result
        result = _or_else(step, lambda name, before=before: before if name == own_name else names(name))
    return result


def _or_else(text: str, names: Names) -> Value:
    given, has_other, other = text.removesuffix(" if unset").partition(" or ")
    if not has_other or not text.endswith(" if unset"):
        return _value(text, names)
    try:
        return _value(given, names)
    except NotUnderstood:
        return _value(other, names)


def _value(text: str, names: Names) -> Value:
    try:
        tree = ast.parse(_python(text), mode="eval")
    except SyntaxError:
        raise NotUnderstood(f"'{text.strip()}' is no expression") from None
    try:
        return _evaluate(tree.body, names)
    except (TypeError, ZeroDivisionError) as error:
        raise NotUnderstood(f"'{text.strip()}': {error}") from None


def _python(text: str) -> str:
    """The shell's comparisons, truth values and "a?b:c" as Python's."""
    for shell, python in SHELL:
        text = text.replace(f" {shell} ", f" {python} ")
    text = re.sub(r"(?<![<>=!])=(?!=)", "==", text.strip())
    text = re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", text))
    if choice := re.fullmatch(r"([^?]+)\?([^:]+):(.+)", text):
        text = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
    return text.strip()


def _evaluate(node: ast.expr, names: Names) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return names(name)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, names)  # type: ignore[operator]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            return COMPARISONS[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.BoolOp(op=op, values=values):
            # Of "A and B or C" nothing says whether the script nests it or the note joined two tests.
            if any(isinstance(value, ast.BoolOp) and type(value.op) is not type(op) for value in values):
                raise NotUnderstood(f"'{ast.unparse(node)}' mixes and with or")
            found = [bool(_evaluate(value, names)) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate(body if _evaluate(test, names) else other, names)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_evaluate(argument, names) for argument in arguments))
    raise NotUnderstood(f"'{ast.unparse(node)}' is not of the language")
