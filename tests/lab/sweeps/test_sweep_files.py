"""A grid of the user's own, as a recipe."""

from pathlib import Path

import pytest

from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.lab.sweeps.naming import row_of
from secureafl.lab.sweeps.sweep_files import find_sweep, parse_sweep, sweep_name

GRID = """
about = "two limits"

[base]
rounds = 200
"defense_settings.window" = 50

[grid]
attack = ["none", "sign_flip"]
defense_settings.percentile = [0.5, 0.8]
"""


def test_a_grid_is_all_combinations_over_the_base() -> None:
    recipe = parse_sweep(GRID, "mine.toml")
    assert [(cell.attack, cell.defense_settings["percentile"]) for cell in recipe.cells()] == [
        *(("none", 0.5), ("none", 0.8), ("sign_flip", 0.5), ("sign_flip", 0.8))
    ]
    assert {(cell.rounds, cell.defense_settings["window"]) for cell in recipe.cells()} == {(200, 50)}
    assert (recipe.about, recipe.text) == ("two limits", GRID)
    assert [cell.seed for cell in recipe.cells(range(2), rounds=100)] == [0, 1] * 4


def test_rows_are_the_defense_and_what_varies_beside_the_attack() -> None:
    recipe = parse_sweep(GRID, "mine.toml")
    assert [row_of(recipe, cell.complete()) for cell in recipe.cells()] == [
        *("secureafl, percentile=0.5", "secureafl, percentile=0.8") * 2
    ]
    plain = parse_sweep('[grid]\nattack = ["none", "pgd"]\ndefense = ["kardam", "asyncsgd"]', "mine.toml")
    assert [row_of(plain, cell.complete()) for cell in plain.cells()] == ["kardam", "asyncsgd"] * 2


def test_cells_are_run_at_every_point_and_have_settings_of_their_own() -> None:
    text = """
    grid.attack = ["none", "sign_flip"]
    cells = [{defense = "kardam", defense_settings = {dampening = "none"}}, {defense = "asyncsgd", batch-size = 8}]
    """
    recipe = parse_sweep(text, "mine.toml")
    rows = [(cell.attack, row_of(recipe, cell.complete())) for cell in recipe.cells()]
    assert rows == [
        ("none", "kardam, dampening=none, batch_size=32"),
        ("sign_flip", "kardam, dampening=none, batch_size=32"),
        ("none", "asyncsgd, batch_size=8"),
        ("sign_flip", "asyncsgd, batch_size=8"),
    ]


def test_a_whole_table_may_vary() -> None:
    recipe = parse_sweep("[grid]\ndefense_settings = [{percentile = 0.5}, {window = 50}]", "mine.toml")
    assert [cell.defense_settings for cell in recipe.cells()] == [{"percentile": 0.5}, {"window": 50}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid", "mine.toml is no TOML"),
        ("[grids]", "did you mean 'grid'"),
        ("[grid]\nattack = 'none'", r"attack in \[grid\] needs a list of values; put a single one into \[base\]"),
        ("[grid]\nattack = []", "needs a list of values"),
        ("[base]\nseed = 3", "leave seed out; --seeds 3 repeats"),
    ],
)
def test_a_mistake_in_the_file_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_sweep(text, "mine.toml")


def test_a_misspelt_setting_is_met_with_the_nearest() -> None:
    with pytest.raises(UnknownSettingError, match="did you mean 'rounds'"):
        parse_sweep("[base]\nround = 3", "mine.toml").cells()


def test_a_sweep_has_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GRID)
    name, recipe = find_sweep(str(tmp_path / "mine.toml"))
    assert (name, len(recipe.cells())) == ("mine", 4)
    assert (sweep_name("a/mine.toml"), sweep_name("demo")) == ("mine", "demo")
    assert find_sweep("demo")[1].text == ""
    (tmp_path / "demo.toml").write_text(GRID)
    with pytest.raises(SettingsError, match="demo is a recipe of the laboratory; give the file another name"):
        find_sweep(str(tmp_path / "demo.toml"))
