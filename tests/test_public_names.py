import ast
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

import secureafl

PACKAGES = (
    "secureafl",
    "secureafl.server",
    "secureafl.defenses",
    "secureafl.defenses.secureafl",
    "secureafl.engines.flower",
    "secureafl.engines.nvflare",
    "secureafl.engines.pytorch",
    "secureafl.lab",
    "secureafl.lab.attacks",
    "secureafl.lab.data",
    "secureafl.testing",
)
FEWEST_WORDS = 3


def test_public_names() -> None:
    assert sorted(secureafl.__all__) == [
        "ClientId",
        "DEFENSES",
        "Defense",
        "Layout",
        "Machine",
        "MachineSettings",
        "Model",
        "Reason",
        "SecureAFL",
        "SecureAFLError",
        "SecureAFLSettings",
        "Ticket",
        "Update",
        "Vector",
        "Verdict",
        "__version__",
        "build_defense",
    ]


def test_every_public_name_exists() -> None:
    assert all(hasattr(secureafl, name) for name in secureafl.__all__)


def constants() -> dict[str, str]:
    """Every module's constants and aliases with the text below them."""
    found: dict[str, str] = {}
    for path in Path(*secureafl.__path__).rglob("*.py"):
        body = ast.parse(path.read_text()).body
        for statement, below in pairwise(body):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
                )
                found |= {target.id: str(below.value.value) for target in targets if isinstance(target, ast.Name)}
    return found


def says_something(name: str, text: str | None) -> bool:
    """Whether a docstring has more in it than the name again."""
    words = re.findall(r"[a-z]+", (text or "").lower())
    return len(words) >= FEWEST_WORDS and "".join(words) != name.replace("_", "").lower()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring_that_says_something(package: str) -> None:
    module, texts = importlib.import_module(package), constants()
    for name in module.__all__:
        value = getattr(module, name)
        is_code = inspect.isclass(value) or inspect.isfunction(value)
        text = value.__doc__ if is_code else texts.get(name)
        assert name == "__version__" or says_something(name, text), f"{package}.{name}: {text!r}"


def test_every_public_method_of_the_core_has_a_docstring() -> None:
    for name in ("Machine", "Layout", "Defense", "Update"):
        for method, value in vars(getattr(secureafl, name)).items():
            if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert says_something(method, value.__doc__), f"{name}.{method}"


def test_an_empty_docstring_is_noticed() -> None:
    assert not says_something("build_defense", "Build defense.")
    assert not says_something("build_defense", None)
    assert says_something("build_defense", "The defense called `name`.")
