from collections import Counter

import pytest

from secureafl.errors import SettingsError
from secureafl.lab.attacks import ATTACKS
from secureafl.lab.cells.build import draw_malicious
from secureafl.lab.sweeps.naming import row_of
from secureafl.lab.sweeps.recipes import RECIPES, find_recipe
from secureafl.lab.sweeps.recipes.compared import NEW_ATTACKS
from secureafl.lab.sweeps.recipes.paper import paper_results, paper_table


def test_every_recipe_has_cells_without_repetition() -> None:
    for name, recipe in RECIPES.items():
        cells = recipe.cells()
        assert len({cell.cell_id() for cell in cells}) == len(cells), name


def test_the_main_table_is_the_papers() -> None:
    recipe = RECIPES["main-fashion-mnist"]
    places = {(row_of(recipe, cell.complete()), cell.attack) for cell in recipe.cells()}
    printed = {(row, attack) for row, columns in paper_table(recipe).items() for attack in columns}
    assert printed <= places
    new = {("secureafl", attack) for attack in NEW_ATTACKS}
    assert {row for row, _ in places - printed - new} == {"secureafl-paper", "fedbuff", "asyncfilter"}
    assert new <= places
    assert paper_table(recipe)["secureafl"]["scaling"] == [0.18, 0.07]


@pytest.mark.parametrize("name", ["main-udacity", "main-tiny-imagenet", "alpha", "variants"])
def test_each_figure_of_the_paper_has_its_cell(name: str) -> None:
    recipe = RECIPES[name]
    places = {(row_of(recipe, cell.complete()), cell.attack) for cell in recipe.cells()}
    assert {(row, attack) for row, columns in paper_table(recipe).items() for attack in columns} <= places


def test_the_papers_attacks_exist() -> None:
    attacks = {attack for table in paper_results()["main"].values() for row in table.values() for attack in row}
    assert attacks - {"none"} <= ATTACKS.keys()
    assert len(attacks) == 11


def test_seeds_and_changes_apply_to_every_cell() -> None:
    cells = RECIPES["alpha"].cells(range(2), rounds=200, defense_settings={"lead": 0.1})
    assert len(cells) == 2 * 55
    assert {cell.evaluate_every for cell in cells} == {10}
    for rounds, evaluate_every in ((100, 8), (40, 8), (20, 4), (3, 1)):  # five at least, where there are as many rounds
        assert {cell.evaluate_every for cell in RECIPES["alpha"].cells(rounds=rounds)} == {evaluate_every}
    assert {(cell.defense_settings["percentile"], cell.defense_settings["lead"]) for cell in cells} == {
        (0.4, 0.1),
        (0.5, 0.1),
        (0.6, 0.1),
        (0.8, 0.1),
        (0.9, 0.1),
    }


def test_a_minority_is_honest_whoever_attacks() -> None:
    cells = RECIPES["fairness"].cells()
    assert {(cell.partition, cell.held_class, len(cell.minority)) for cell in cells} == {("minority", 9, 5)}
    assert {cell.attack for cell in cells} == {"none", "sign_flip", "imitate"}
    assert {row_of(RECIPES["fairness"], cell.complete()) for cell in cells} == {
        "asyncsgd",
        "secureafl",
        "secureafl-paper",
    }
    assert all(not draw_malicious(cell) & cell.minority for cell in cells)


def test_look_alikes_are_few_where_few_are_enough() -> None:
    found = {cell.attack: cell.num_malicious for cell in RECIPES["look-alikes"].cells()}
    assert found == {"none": 10, "flood": 1, "whitewash": 5, "mimic": 10, "imitate": 10, "apart": 10}


def test_each_composition_of_regions_meets_each_placement() -> None:
    recipe = RECIPES["regions"]
    rows = {row_of(recipe, cell.complete()) for cell in recipe.cells()}
    assert len(rows) == 4 * 3
    assert "asyncsgd, top secureafl, in 2 of 10 regions" in rows
    whole = [cell for cell in recipe.cells() if cell.regions.malicious_regions == 2]
    assert {cell.num_malicious for cell in whole} == {2 * cell.num_clients // 10 for cell in whole}


def test_a_text_is_learned_by_each_client_from_its_own_stretch() -> None:
    cells = RECIPES["text"].cells()
    assert len(cells) == 4 * 6
    assert {(cell.dataset, cell.partition, cell.rounds, cell.evaluate_every) for cell in cells} == {
        ("king-james", "time-blocks", 5000, 250)
    }
    assert {cell.defense_settings["scale"] for cell in cells if cell.defense == "fedbuff"} == {50.0}  # tuned anew


def test_rows_of_local_training_name_the_method_and_its_steps() -> None:
    recipe = RECIPES["local-training"]
    rows = [row_of(recipe, cell.complete()) for cell in recipe.cells()]
    assert set(Counter(rows).values()) == {6}
    assert len(set(rows)) == 3 * 5
    assert {"fedbuff", "secureafl-paper, local_steps=8", "aflguard, local_steps=37"} <= set(rows)


def test_a_misspelt_recipe_is_met_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'variants'"):
        find_recipe("variant")


def test_rows_are_told_apart_by_what_differs() -> None:
    recipe = RECIPES["estimator"]
    rows = {row_of(recipe, cell.complete()) for cell in recipe.cells()}
    assert {
        "secureafl-median",
        "secureafl-paper",
        "secureafl-median, lead=0.0",
        "secureafl-paper, correction=none",
    } <= rows
    assert len(rows) == 15
