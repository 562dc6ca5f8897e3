import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.lab.tiny import tiny_cell

from secureafl.errors import SettingsError
from secureafl.files import save_json
from secureafl.lab.api.cell_results import open_cell
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.earlier_names import RESULT
from secureafl.lab.cells.experiment import RunSettings, run_cell
from secureafl.lab.reports.plots import Cell
from secureafl.lab.reports.sweep_plots import draw_lines
from secureafl.lab.reports.tables import (
    arrange,
    best_places,
    command_of,
    markdown,
    ours_text,
    paper_text,
    provenance,
    recall_markdown,
)
from secureafl.lab.reports.write import (
    cell_table,
    closely,
    html_recalls,
    recall_rows,
    sweep_table,
    write_report,
    write_reports,
)
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes import RECIPES
from secureafl.lab.sweeps.sweep import read_sweep

SMALL: dict[str, Any] = {
    "architecture": "small-cnn",
    "num_clients": 8,
    "malicious_fraction": 0.2,
    "batch_size": 4,
    "rounds": 12,
    "num_test": 40,
}


def text_of(table: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def fill(recipe: str, source: Path, out: Path, **changes: Any) -> None:
    """Run a few cells of a recipe in this process, as a sweep would leave them."""
    cells = RECIPES[recipe].cells(**{**SMALL, "source": str(source), "evaluate_every": 4, **changes})
    chosen = [cell for cell in cells if cell.attack in {"none", "sign_flip", "scaling"}][:9]
    for cell in chosen:
        run_cell(cell, out / "cells", None, RunSettings())
    save_json(out / f"{recipe}.json", {"recipe": recipe, "cells": [cell.cell_id() for cell in chosen]})


def test_a_cell_ends_with_a_table_and_a_picture(tiny_source: Path, tmp_path: Path) -> None:
    cell = tiny_cell(tiny_source, attack="scaling")
    result = run_cell(cell, tmp_path)
    text = text_of(cell_table(result))
    assert "attack success rate" in text
    assert "malicious updates accepted" in text
    worst = result["worst_class"]["published"]
    words = f"recall of the worst class, {worst}"
    assert dict(recall_rows(result))[words] == f"{result['last'][f'published_recall_{worst}']:.3f}"
    assert words in text
    assert cell_table(result).row_count == 6
    del result["worst_class"]  # as in results of 0.1
    assert "worst class" not in text_of(cell_table(result))
    picture = open_cell(tmp_path / cell.cell_id()).save_plot()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_a_cell_without_its_arrivals_is_drawn_as_far_as_it_goes(tiny_source: Path, tmp_path: Path) -> None:
    cell = tiny_cell(tiny_source)
    run_cell(cell, tmp_path)
    (tmp_path / cell.cell_id() / "arrivals.parquet").unlink()
    assert open_cell(tmp_path / cell.cell_id()).save_plot().exists()


def test_the_main_table_shows_ours_beside_the_papers(tiny_source: Path, tmp_path: Path) -> None:
    fill("main-fashion-mnist", tiny_source, tmp_path)
    text = text_of(
        sweep_table("main-fashion-mnist", RECIPES["main-fashion-mnist"], read_sweep(tmp_path, "main-fashion-mnist"))
    )
    assert "(0.41/0.69)" in text  # AsyncSGD under Scaling, in the paper
    page = write_report(tmp_path, "main-fashion-mnist")
    html = page.read_text()
    assert "<small>0.41/0.69</small>" in html
    assert len(re.findall(r'src="data:image/png;base64', html)) >= 2
    assert not re.search(r'(src|href)="(?!data:)', html)  # self-contained
    assert (page.parent / "heat-map.pdf").exists()
    for large in tmp_path.rglob("arrivals.parquet"):
        large.unlink()
    assert "<table" in write_report(tmp_path, "main-fashion-mnist").read_text(), "results and curves suffice"


@pytest.mark.parametrize(
    ("recipe", "changes", "picture"),
    [
        ("malicious-fraction", {}, "lines"),
        ("variants", {}, "heat-map"),
        ("estimation-error", {"num_estimated": 2}, "estimation-error"),
        ("running-time", {"num_clients": 8}, None),
    ],
)
def test_every_layout_can_be_drawn(
    recipe: str, changes: dict[str, object], picture: str | None, tiny_source: Path, tmp_path: Path
) -> None:
    fill(recipe, tiny_source, tmp_path, **changes)
    page = write_report(tmp_path, recipe)
    assert "<table" in page.read_text()
    assert picture is None or (page.parent / f"{picture}.png").exists()


def test_a_setting_is_marked_where_it_was_run_and_alike_in_every_panel() -> None:
    recipe = RECIPES["delay"]
    run = {("none", 5), ("none", 50), ("sign_flip", 50)}
    cells = [
        Cell({"settings": cell.complete(), "last": {"ter": 0.3, "published_ter": 0.2}}, {}, {})
        for cell in recipe.cells()
        if (cell.attack, cell.max_delay) in run and cell.defense == "secureafl"
    ]
    for panel in draw_lines(cells, recipe).axes:
        assert panel.get_xticks().tolist() == [5.0, 50.0]
        assert panel.get_xscale() == "log", "the largest is ten times the smallest"
        assert np.asarray(panel.get_lines()[0].get_ydata())[-1] == 0.2  # of the published model


def test_the_list_of_cells_says_whose_they_are() -> None:
    recipe = RECIPES["delay"]
    cell = next(cell for cell in recipe.cells() if cell.defense == "aflguard")
    result = {
        "settings": cell.complete(),
        "last": {"ter": 0.3},
        "detection": {"honest_accepted": 1.0, "malicious_accepted": 0.0},
        "provenance": {"commit": "0" * 40},
    }
    assert "| AFLGuard, 5 | No attack |" in provenance(recipe, [result])


def test_a_cell_of_an_older_version_is_listed_with_what_was_typed() -> None:
    settings = CellSettings().complete()
    command = "secureafl lab run --attack none"
    result = {"settings": settings, "provenance": {"command": command}}
    assert command_of(result) == "secureafl lab run"
    settings["defense_settings"]["sketch_seed"] = 0  # a setting of 0.1
    assert command_of(result) == command


def test_only_one_rows_updates_are_drawn_under_its_name() -> None:
    recipe = RECIPES["main-fashion-mnist"]
    ours = [cell for cell in recipe.cells() if cell.defense == "secureafl"]
    cells = [
        Cell({"settings": cell.complete(), "malicious": [] if cell.attack == "none" else [0]}, {}, columns)
        for cell in ours
        if cell.attack in {"none", "sign_flip", "scaling"}
        for columns in ({}, {"client": np.zeros(1)})
    ]
    name, chosen = closely(cells, recipe)
    assert name == "SecureAFL"
    assert [cell.settings["attack"] for cell in chosen] == ["sign_flip", "scaling"]
    literal = [cell for cell in cells if cell.settings["defense_settings"]["correction"] == "raw"]
    assert closely(literal, recipe)[0] == "the published algorithm"
    assert closely([cell for cell in cells if not cell.arrivals], recipe) == ("", [])
    assert closely(cells, RECIPES["alpha"])[0] == "SecureAFL, defense_settings.percentile 0.5"


def test_the_papers_notation() -> None:
    table = {"kardam": {"none": 0.17, "scaling": [0.79, 0.92], "min_max": "inf"}}
    assert paper_text(table, "kardam", "none") == "0.17"
    assert paper_text(table, "kardam", "scaling") == "0.79/0.92"
    assert paper_text(table, "kardam", "min_max") == "inf"
    assert paper_text(table, "kardam", "hold") == ""
    assert paper_text(None, "kardam", "none") == ""


def test_a_report_without_a_sweep_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="secureafl lab sweep demo"):
        write_report(tmp_path, "demo")


def test_tables_are_written_for_a_page_and_for_a_paper(tiny_source: Path, tmp_path: Path) -> None:
    fill("main-fashion-mnist", tiny_source, tmp_path)
    again = RECIPES["main-fashion-mnist"].cells(seeds=[7], **SMALL, source=str(tiny_source))[0]
    again = again.model_copy(update={"evaluate_every": 4})
    run_cell(again, tmp_path / "cells", None, RunSettings())
    directory = write_report(tmp_path, "main-fashion-mnist").parent
    table = (directory / "table.md").read_text()
    assert table.startswith("|  | No attack |")
    row = next(line for line in table.splitlines() if line.startswith("| AsyncSGD |"))
    assert "±" in row.split("|")[2]  # another seed of the same cell is found, and counts
    assert "(0.12)" in row.split("|")[2]
    assert r"$\pm$" in (directory / "table.tex").read_text()
    fairness = (directory / "fairness.md").read_text()
    assert fairness.startswith("|  | attack | seed | recall of the worst class | accepted, worst honest group |")
    assert "| AsyncSGD | No attack | 7 |" in fairness
    cells = (directory / "cells.md").read_text()
    assert "`secureafl lab run --defense asyncsgd --seed 7 --set architecture=small-cnn" in cells


def test_all_reports_are_drawn_from_cells_alone_and_again_the_same(tiny_source: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no sweep"):
        write_reports(tmp_path)
    fill("main-fashion-mnist", tiny_source, tmp_path)
    fill("non-iid", tiny_source, tmp_path)
    save_json(tmp_path / "delay.json", {"recipe": "delay", "cells": []})
    for arrivals in tmp_path.glob("cells/*/arrivals.parquet"):  # too large to be kept for long
        arrivals.unlink()
    pages = write_reports(tmp_path)
    assert [page.parent.name for page in pages] == ["main-fashion-mnist-report", "non-iid-report"]
    first = {path: path.read_bytes() for path in tmp_path.glob("*-report/*") if path.suffix != ".pdf"}
    assert {path.name for path in first} >= {"fairness.md", "fairness.png", "table.md", "table-newest.md", "cells.md"}
    for path in first:
        path.unlink()
    write_reports(tmp_path)
    assert {path: path.read_bytes() for path in first} == first


def test_a_seed_that_was_not_asked_for_counts_once(tmp_path: Path) -> None:
    cells = {seed: RECIPES["demo"].cells(seeds=[seed])[0] for seed in (2, 0, 1)}
    for cell in cells.values():
        directory = tmp_path / "cells" / cell.cell_id()
        directory.mkdir(parents=True)
        save_json(directory / RESULT, {"settings": cell.complete()})
    save_json(tmp_path / "demo.json", {"recipe": "demo", "cells": [cells[seed].cell_id() for seed in (0, 1)]})
    assert [result["settings"]["seed"] for result in read_sweep(tmp_path, "demo")] == [0, 1, 2]


def test_columns_stand_in_the_papers_order_whichever_cell_was_found_first() -> None:
    found = ("hold", "pgd", "dba", "none")
    results = [{"settings": {"defense": "asyncsgd", "attack": attack, "defense_settings": {}}} for attack in found]
    assert arrange(RECIPES["matrix"], results)[0] == ["none", "dba", "pgd", "hold"]


def finished(defense: str, ter: float, asr: float, seed: int = 0) -> dict[str, Any]:
    """What a table needs of a cell under the scaling attack."""
    settings = {"defense": defense, "attack": "scaling", "defense_settings": {}, "seed": seed}
    last = {"ter": ter, "asr": asr, "published_ter": ter, "published_asr": asr}
    return {"settings": settings, "last": last}


def test_a_columns_best_is_where_neither_error_nor_backdoor_is_large() -> None:
    results = [
        finished("asyncsgd", 0.10, 0.90),  # learns well, with the door open
        finished("kardam", 0.20, 0.05),
        finished("basgd", 0.208, 0.05),  # a tie
        finished("zenopp", 0.212, 0.05),
    ]
    _, _, cells = arrange(RECIPES["matrix"], results)
    assert best_places(cells) == {("kardam", "scaling"), ("basgd", "scaling")}
    lines = markdown(RECIPES["matrix"], results).splitlines()
    assert lines[2:] == [
        "| AsyncSGD | 0.100/0.900 |",
        "| Kardam | **0.200/0.050** |",
        "| BASGD | **0.208/0.050** |",
        "| Zeno++ | 0.212/0.050 |",
    ]


def test_rows_whose_task_differs_are_not_compared() -> None:
    results = [finished(defense, ter, 0.0) for defense, ter in (("asyncsgd", 0.1), ("kardam", 0.2))]
    results += [finished(defense, ter, 0.0) for defense, ter in (("asyncsgd", 0.5), ("kardam", 0.4))]
    for result in results[2:]:
        result["settings"] |= {"local_steps": 8}
    recipe = Recipe("", list, row="method, local_steps", within="local_steps")
    _, _, cells = arrange(recipe, results)
    assert best_places(cells, within="local_steps") == {("asyncsgd", "scaling"), ("kardam, local_steps=8", "scaling")}
    assert best_places(cells) == {("asyncsgd", "scaling")}


def test_seeds_are_averaged_before_columns_are_compared() -> None:
    results = [finished("asyncsgd", 0.3, 0.0), finished("asyncsgd", 0.1, 0.0, seed=1), finished("kardam", 0.25, 0.0)]
    _, _, cells = arrange(RECIPES["matrix"], results)
    assert best_places(cells) == {("asyncsgd", "scaling")}


def test_no_one_is_the_best_of_a_column_in_which_all_are_alike() -> None:
    for rivals in (["asyncsgd"], ["asyncsgd", "kardam", "basgd"]):
        _, _, cells = arrange(RECIPES["matrix"], [finished(defense, 0.1, 0.99) for defense in rivals])
        assert best_places(cells) == set()


def test_the_errors_of_a_regression_are_compared_by_share_and_shown_with_three_digits() -> None:
    def regressed(defense: str, rmse: float) -> dict[str, Any]:
        settings = {"defense": defense, "attack": "none", "defense_settings": {}, "seed": 0}
        return {"settings": settings, "last": {"rmse": rmse, "published_rmse": rmse}}

    results = [regressed("asyncsgd", 0.0820), regressed("kardam", 0.0827), regressed("basgd", 0.0850)]
    _, _, cells = arrange(RECIPES["matrix"], results)
    assert best_places(cells) == {("asyncsgd", "none"), ("kardam", "none")}
    assert ours_text(results[:1]) == "0.082"


def test_a_run_with_a_minority_shows_the_recall_of_its_class() -> None:
    recalls = {f"{prefix}recall_{label}": 0.1 * label for prefix in ("", "published_") for label in range(10)}
    result = {
        "held_class": 4,
        "last": recalls,
        "worst_class": {"newest": 0, "published": 4},
    }
    assert recall_rows(result) == [("recall of class 4, which a minority holds", "0.400")]
    assert recall_rows({**result, "worst_class": {"published": 0}}) == [
        ("recall of the worst class, 0", "0.000"),
        ("recall of class 4, which a minority holds", "0.400"),
    ]


def test_recall_of_the_worst_class_stands_in_a_table_of_its_own() -> None:
    recipe = RECIPES["demo"]
    asyncsgd = next(cell for cell in recipe.cells() if (cell.defense, cell.attack) == ("asyncsgd", "sign_flip"))
    ours = next(cell for cell in recipe.cells() if (cell.defense, cell.attack) == ("secureafl", "none"))
    results = [
        {"settings": cell.complete(), "last": {"ter": 0.3, "worst_recall": 0.25, "published_worst_recall": 0.5}}
        for cell in (asyncsgd, ours)
    ]
    lines = recall_markdown(recipe, results).splitlines()
    assert lines[0] == "|  | No attack | Sign flip |"
    assert lines[2:] == ["| AsyncSGD |  | 0.500 |", "| SecureAFL | 0.500 |  |"]  # of the published model
    assert "0.500" in html_recalls(recipe, results)
    assert html_recalls(recipe, [{**result, "last": {"ter": 0.3}} for result in results]) == ""  # results of 0.1
