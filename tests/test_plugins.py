"""Code of the user's own, found by its name; what goes wrong is said in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from secureafl import plugins
from secureafl.defenses import DEFENSES, DefenseEntry, build_defense, defense_entry, find_defense
from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.lab.attacks import ATTACKS, attack_entry, build_attack, find_attack
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.data.partition import checked, find_partition
from secureafl.server import FederationSettings
from secureafl.settings import Settings

MODULE = '''
"""Gate: refuses what is long."""

import numpy as np

from secureafl import Verdict
from secureafl.defenses import DefenseEntry
from secureafl.lab.attacks import AttackEntry
from secureafl.lab.attacks.attack import Stateless
from secureafl.settings import Settings


class GateSettings(Settings):
    limit: float = 1.0


class Plain:
    def __init__(self, dim):
        self.dim = dim

    def step(self, update, model):
        return Verdict(True, "accepted", update.delta)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Gate(Plain):
    def __init__(self, dim, settings=GateSettings(), *, seed, reference):
        self.dim, self.settings, self.seed, self.reference = dim, settings, seed, reference


class Greedy(Plain):
    def __init__(self, dim, budget):
        pass


class Late(Plain):
    def __init__(self, dim, seed, settings=GateSettings()):
        pass


class Shy(Plain):
    def __init__(self):
        pass


class Push(Stateless):
    def update(self, view):
        return -view.gradient


class Half:
    def step(self, update, model):
        pass


ENTRY = DefenseEntry(Gate, GateSettings, ("seed", "reference"))
MARKED = AttackEntry(Push, is_backdoor=True)


def blocks(labels, num_clients, rng):
    return np.array_split(np.arange(len(labels)), num_clients)
'''


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported, and a package that offers some of them."""
    (tmp_path / "own_gates.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import json\n\n1 / 0\n")
    (tmp_path / "own_needy.py").write_text("import no_such_package\n")
    (tmp_path / "own_garbled.py").write_text("def (\n")
    info = tmp_path / "gates-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gates\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[secureafl.defenses]\ngate = own_gates:Gate\n\n[secureafl.attacks]\npush = own_gates:Push\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_gates", raising=False)  # that of another test
    plugins.installed.cache_clear()
    yield tmp_path
    plugins.installed.cache_clear()


def test_a_class_is_found_by_module_and_name_with_what_its_constructor_takes(gates: Path) -> None:
    entry = find_defense("own_gates:Gate")
    assert (entry.settings.__name__, entry.needs) == ("GateSettings", ("seed", "reference"))
    reference = lambda model: model.params  # noqa: E731
    made = build_defense("own_gates:Gate", 3, {"limit": 2.0}, seed=7, reference=reference)
    assert (made.settings.limit, made.seed, made.reference) == (2.0, 7, reference)  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="pass reference="):
        build_defense("own_gates:Gate", 3)
    with pytest.raises(UnknownSettingError, match="GateSettings has no setting 'limt'; did you mean 'limit'"):
        build_defense("own_gates:Gate", 3, {"limt": 2.0}, reference=reference)


def test_a_class_without_settings_has_nothing_to_set(gates: Path) -> None:
    assert build_defense("own_gates:Plain", 3).dim == 3  # type: ignore[attr-defined]
    assert build_attack("own_gates:Push").state_dict() == {}
    with pytest.raises(UnknownSettingError, match="'limit'; it knows: none"):
        build_defense("own_gates:Plain", 3, {"limit": 1.0})


def test_an_entry_says_more_than_a_class(gates: Path) -> None:
    assert find_defense("own_gates:ENTRY") == find_defense("own_gates:Gate")
    assert find_attack("own_gates:MARKED").is_backdoor
    assert not find_attack("own_gates:Push").is_backdoor


def test_an_installed_package_offers_its_own_under_a_name(gates: Path) -> None:
    assert find_defense("gate") == find_defense("own_gates:Gate")
    assert find_attack("push") == find_attack("own_gates:Push")
    with pytest.raises(UnknownSettingError, match="there is no attack 'pusch'; did you mean 'push'"):
        find_attack("pusch")


def test_two_packages_that_offer_one_name_are_told_apart_by_the_operator(gates: Path) -> None:
    info = gates / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[secureafl.defenses]\ngate = own_gates:Plain\n")
    with pytest.raises(SettingsError, match="two packages offer defense 'gate': uninstall one"):
        find_defense("gate")


@pytest.mark.parametrize("name", [name for name in DEFENSES if name != "secureafl"])
def test_entries_of_ours_say_what_the_constructors_say(name: str) -> None:
    assert set(defense_entry(name, DEFENSES[name].make).needs) == set(DEFENSES[name].needs)
    assert defense_entry(name, DEFENSES[name].make).settings is DEFENSES[name].settings


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_of_ours_are_read_the_same_way(name: str) -> None:
    assert attack_entry(name, ATTACKS[name].make).settings is ATTACKS[name].settings


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_gate:Gate", "own_gate:Gate: there is no module 'own_gate'; run the command in the folder that holds it"),
        ("own_gates:Gat", "own_gates.py has no 'Gat'; did you mean 'Gate'"),
        ("own_gates:", "'own_gates:' names nothing: write module:Name"),
        ("own_gates.Gate", "for one of your own, write own_gates:Gate with a colon"),
        ("own_gates:blocks", "own_gates:blocks is a function, and no defense: name a class with step, state_dict"),
        ("own_gates:Half", "own_gates:Half is no defense: add the methods state_dict, load_state_dict to it"),
        ("own_gates:Push", "own_gates:Push is no defense: add the method step to it"),
        ("own_gates:Greedy", "asks for 'budget'; it may take dim, settings=MySettings(), server_lr, seed"),
        ("own_gates:Late", "must take dim, settings=MySettings() in this order"),
        ("own_gates:Shy", "its constructor must take dim"),
        ("own_broken:X", "importing own_broken failed: ZeroDivisionError: division by zero"),
        ("own_needy:X", "importing own_needy failed: ModuleNotFoundError: No module named 'no_such_package'"),
        ("own_garbled:X", "importing own_garbled failed: SyntaxError"),
    ],
)
def test_what_is_no_defense_says_what_to_do(name: str, message: str, gates: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        find_defense(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failing_import_names_the_line(gates: Path) -> None:
    with pytest.raises(SettingsError, match=r"own_broken\.py, line 3\)"):
        plugins.load_object("own_broken:X")


def test_what_is_no_attack_or_partition_says_what_to_do(gates: Path) -> None:
    with pytest.raises(SettingsError, match="own_gates:Plain is no attack: add the methods update, observe to it"):
        find_attack("own_gates:Plain")
    with pytest.raises(SettingsError, match="is a DefenseEntry, and no partition: name a function of labels"):
        find_partition("own_gates:ENTRY")
    with pytest.raises(UnknownSettingError, match="there is no partition 'dirichle'; did you mean 'dirichlet'"):
        find_partition("dirichle")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1]], "dealt to 1 clients; there are 2"),
        ([[0, 1], []], "gave client 1 an array of shape"),
        ([[0, 1], [0.5]], "type float64"),
        ([[0, 1], [5]], "dealt row 5 of 5"),
        ([[0, 1], [-1]], "dealt row -1 of 5"),
        ([[0, 1], [1, 2]], "dealt a row twice"),
    ],
)
def test_a_partition_of_ones_own_is_checked(parts: list[list[float]], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        checked("own:deal", [np.array(part) for part in parts], 2, 5)


def test_a_partition_of_ones_own_is_sorted_and_may_leave_rows_out() -> None:
    first, second = checked("own:deal", [np.array([3, 1]), np.array([0])], 2, 5)
    assert (first.tolist(), second.tolist()) == ([1, 3], [0])


def test_a_run_records_the_name_and_the_settings_in_force(gates: Path) -> None:
    facts = FederationSettings(defense="own_gates:Gate").facts()
    assert (facts["defense"], facts["defense_settings"]) == ("own_gates:Gate", {"limit": 1.0})
    with pytest.raises(UnknownSettingError, match="did you mean 'limit'"):
        FederationSettings(defense="own_gates:Gate", defense_settings={"limt": 1}).facts()


def test_a_cell_of_ones_own_code_is_another_when_the_code_changes(gates: Path) -> None:
    cell = CellSettings(defense="own_gates:Gate", attack="own_gates:Push", partition="own_gates:blocks")
    before = cell.cell_id()
    assert before.startswith("fashion-mnist-own_gates.Gate-own_gates.Push-")
    assert set(cell.code()) == {"own_gates:Gate", "own_gates:Push", "own_gates:blocks"}
    assert cell.complete()["defense_settings"] == {"limit": 1.0}
    assert "--defense own_gates:Gate --attack own_gates:Push" in cell.command()
    assert "--set partition=own_gates:blocks" in cell.command()
    assert cell.cell_id() == before
    (gates / "own_gates.py").write_text(f"{MODULE}\n# changed\n")
    assert cell.cell_id() == before, "this process runs what it imported"
    plugins.file_digest.cache_clear()
    assert cell.cell_id() != before
    assert CellSettings(defense="kardam").code() == {}


def test_what_was_typed_into_an_interpreter_has_no_file() -> None:
    typed: list[dict[str, type[Settings]]] = [{}, {}, {}]
    for place, number in zip(typed, (1, 1, 2), strict=True):
        exec(f"class Typed:\n    def step(self):\n        return {number}", {"__name__": "nowhere"}, place)
    classes = [place["Typed"] for place in typed]
    assert [plugins.source_file(found) for found in classes] == [None, None, None]
    first, same, other = map(plugins.source_digest, classes)
    assert first == same != other  # told apart by its code
    assert plugins.source_digest(DefenseEntry) == plugins.source_digest(find_defense)
