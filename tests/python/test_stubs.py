"""_core.pyi says exactly what the bound module has: names, and the parameters of each function."""

import ast
import inspect
import pathlib
import re

import pytest
from orrery import _core

STUB = pathlib.Path(_core.__file__).with_name("_core.pyi")
if not STUB.exists():
    STUB = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "orrery" / "_core.pyi"
TREE = ast.parse(STUB.read_text(encoding="utf-8"))

# Bound by pybind11 on every class or exception without being part of the interface.
IGNORED = re.compile(r"__(?!init__|eq__|repr__|len__|version__)\w+__|_pybind11_\w+")
EXCEPTIONS = {"ScenarioError"}  # attributes are set on the instance


def stub_functions(body):
    """name -> parameter names, or None for a property."""
    functions = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list)
            arguments = node.args
            names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
            functions[node.name] = None if is_property else [name for name in names if name != "self"]
    return functions


def bound_parameters(function):
    """Parameter names of a bound function, from the signature that pybind11 puts first in its docstring."""
    text = re.match(r"\w+\((.*)\) -> ", function.__doc__)[1]
    tree = ast.parse(f"def f({_without_types(text)}): ...").body[0].args
    names = [argument.arg for argument in [*tree.posonlyargs, *tree.args, *tree.kwonlyargs]]
    return [name for name in names if name != "self"]


def _without_types(text):
    """Parameter list without annotations and defaults: "a: dict[str, int] = {}, *, b" -> "a, *, b"."""
    depth, kept, skipping = 0, "", False
    for character in text:
        depth += (character in "[({<") - (character in "])}>")
        if depth == 0 and character in ":=":
            skipping = True
        if depth == 0 and character == ",":
            skipping = False
        kept += "" if skipping else character
    return kept


def bound_members(owner):
    return {name for name in vars(owner) if not IGNORED.fullmatch(name)}


def stub_classes():
    return {node.name: node for node in TREE.body if isinstance(node, ast.ClassDef)}


def test_module_and_stub_have_the_same_names():
    assigned = {node.target.id for node in TREE.body if isinstance(node, ast.AnnAssign)}
    in_stub = set(stub_classes()) | set(stub_functions(TREE.body)) | assigned
    assert in_stub == bound_members(_core)


@pytest.mark.parametrize("name", sorted(set(stub_classes()) - EXCEPTIONS))
def test_class_and_stub_have_the_same_members(name):
    bound = getattr(_core, name)
    stub = stub_functions(stub_classes()[name].body)
    # A class without a constructor of its own inherits one that raises.
    members = bound_members(bound) - (set() if "__init__" in stub else {"__init__"})
    assert set(stub) == members
    for member, parameters in stub.items():
        value = inspect.getattr_static(bound, member)
        assert (parameters is None) == isinstance(value, property), member
        if parameters is not None and member != "__repr__" and member != "__len__":
            assert parameters == bound_parameters(getattr(bound, member)), member


@pytest.mark.parametrize("name", sorted(stub_functions(TREE.body)))
def test_function_and_stub_have_the_same_parameters(name):
    assert stub_functions(TREE.body)[name] == bound_parameters(getattr(_core, name))


def test_a_parameter_list_is_read_without_its_types_and_defaults():
    text = "self: orrery._core.Batch, *, prefill: collections.abc.Sequence[a.B] = [], num: typing.SupportsInt = 0"
    assert [part.strip() for part in _without_types(text).split(",")] == ["self", "*", "prefill", "num"]
