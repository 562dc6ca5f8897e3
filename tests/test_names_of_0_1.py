import importlib

import numpy as np
import pytest

from secureafl import Machine, SecureAFL
from secureafl.lab.attacks import View
from secureafl.names_of_0_1 import RENAMED


@pytest.mark.parametrize("earlier", RENAMED)
def test_an_import_of_an_earlier_name_says_the_present_one(earlier: str) -> None:
    room, _, name = earlier.rpartition(".")
    with pytest.raises(ImportError, match=rf"{earlier} is called {RENAMED[earlier]} since secureafl 0\.2"):
        importlib.import_module(earlier)
    if not hasattr(importlib.import_module(room), name):
        with pytest.raises(ImportError, match=f" is called {RENAMED[earlier]}"):
            exec(f"from {room} import {name}", {})


@pytest.mark.parametrize("present", sorted(set(RENAMED.values())))
def test_what_it_says_is_there(present: str) -> None:
    room, _, name = present.rpartition(".")
    if not hasattr(importlib.import_module(room), name):
        importlib.import_module(present)


def test_other_names_that_do_not_exist_are_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'secureafl\.nowhere'"):
        importlib.import_module("secureafl.nowhere")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from secureafl.defenses import Nothing", {})


def test_a_member_of_a_class_says_its_present_name() -> None:
    secure = SecureAFL(dim=2)
    machine = Machine(secure, np.zeros(2, np.float32))
    with pytest.raises(AttributeError, match=r"Machine\.reject is called Machine\.refuse since secureafl 0\.2"):
        _ = machine.reject
    with pytest.raises(AttributeError, match=r"SecureAFL\.silent is called SecureAFL\.excluded\(\)"):
        _ = secure.silent
    with pytest.raises(AttributeError, match=r"View\.uploads is called View\.updates"):
        _ = View.uploads
    assert not hasattr(machine, "reject")
