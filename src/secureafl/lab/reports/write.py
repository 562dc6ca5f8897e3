"""From results to something one wants to look at: tables for the terminal, and a self-contained HTML page."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from secureafl.errors import SettingsError
from secureafl.lab.cells.results import NUM_LAST
from secureafl.lab.reports.page import PAGE
from secureafl.lab.reports.plots import Cell, read_cell, save, title
from secureafl.lab.reports.sweep_plots import (
    draw_curves,
    draw_errors,
    draw_fairness,
    draw_filters,
    draw_heat_map,
    draw_lines,
    draw_timeline,
)
from secureafl.lab.reports.tables import (
    TIE,
    arrange,
    best_places,
    error_markdown,
    fairness_markdown,
    latex,
    markdown,
    newest,
    ours_text,
    paper_text,
    provenance,
    recall_markdown,
    recalls,
)
from secureafl.lab.sweeps.naming import row_of
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes.paper import paper_table
from secureafl.lab.sweeps.sweep import CELLS, read_recipe, read_sweep

Result = Mapping[str, Any]

ROWS_OF_METHODS = {"defense", "method", "settings", "variant"}
"""What rows are told apart by where their names say who judged; elsewhere a row is a value."""


def cell_table(result: Result) -> Table:
    """One run at a glance: what the model came to, who was accepted, how fast. `result.json` has the rest."""
    settings, detection = result["settings"], result["detection"]
    heading = f"{title(settings['defense'])}, {title(settings['attack'])}, {settings['dataset']}"
    table = Table(title=heading, title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right", no_wrap=True)
    names = {"ter": "test error rate", "asr": "attack success rate", "rmse": "RMSE"}
    for metric, words in names.items():
        if metric in result["last"]:
            table.add_row(f"{words}, mean of the last {NUM_LAST}", number(result["last"][f"published_{metric}"]))
    for words, value in recall_rows(result):
        table.add_row(words, value)
    table.add_row("honest updates accepted", percent(detection["honest_accepted"]))
    if result["malicious"]:
        table.add_row("malicious updates accepted", percent(detection["malicious_accepted"]))
    table.add_row("updates per second", f"{float(result['timing']['rounds_per_second']):.1f}")
    return table


def recall_rows(result: Result) -> list[tuple[str, str]]:
    """How well the model knows the class that it knows least, and the one that a minority holds, if there is one.

    Results of 0.1 have nothing of this.
    """
    if (worst := result.get("worst_class", {}).get("published")) is None:
        return []
    kinds = {worst: f"the worst class, {worst}"}
    if (held := result.get("held_class")) is not None:
        kinds[held] = f"class {held}, which a minority holds"
    return [
        (f"recall of {words}", number(result["last"][f"published_recall_{label}"])) for label, words in kinds.items()
    ]


def sweep_table(name: str, recipe: Recipe, results: Sequence[Result]) -> Table:
    """The recipe's table with our figures, and the paper's in parentheses."""
    attacks, rows, cells = arrange(recipe, results)
    paper = paper_table(recipe) if recipe.layout == "table" else None
    table = Table(title=f"{name}: {recipe.about}", caption="ours (paper's)" if paper else None)
    table.add_column("", style="bold")
    for attack in attacks:
        table.add_column(title(attack), justify="right")
    for row in rows:
        shown = []
        for attack in attacks:
            ours = ours_text(cells.get((row, attack), []))
            theirs = paper_text(paper, row, attack)
            shown.append(f"{ours}\n({theirs})" if theirs else ours)
        table.add_row(title(row), *shown)
    return table


def write_reports(out_dir: Path) -> list[Path]:
    """Draw every sweep of which there is a finished cell; the pages' paths."""
    swept = [path.stem for path in sorted(out_dir.glob("*.json"))]
    if not swept:
        raise SettingsError(f"there is no sweep in {out_dir}; secureafl lab sweep --list shows what can be swept")
    return [write_report(out_dir, name) for name in swept if read_sweep(out_dir, name)]


def write_report(out_dir: Path, name: str) -> Path:
    """Draw everything the sweep has so far; the page's path."""
    recipe = read_recipe(out_dir, name)
    if not (out_dir / f"{name}.json").exists():
        raise SettingsError(f"there is no sweep {name!r} in {out_dir}; run: secureafl lab sweep {name} --out {out_dir}")
    results = read_sweep(out_dir, name)
    if not results:
        raise SettingsError(f"no cell of {name!r} in {out_dir} is finished yet")
    cells = [read_cell(out_dir / CELLS / result["cell"]) for result in results]
    directory = out_dir / f"{name}-report"
    pictures = [(caption, save(figure, directory / stem), stem) for stem, caption, figure in draw_all(cells, recipe)]
    body = [html_table(recipe, results)]
    for caption, path, stem in pictures:
        image = base64.b64encode(path.read_bytes()).decode()
        body.append(
            f'<figure id="{stem}"><img alt="{html.escape(caption)}" src="data:image/png;base64,{image}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    body.append(html_recalls(recipe, results))
    body.append(html_details(results))
    directory.mkdir(parents=True, exist_ok=True)
    write_tables(recipe, cells, directory)
    page = directory / "index.html"
    page.write_text(PAGE.substitute(title=html.escape(f"{name}: {recipe.about}"), body="\n".join(body)))
    return page


def write_tables(recipe: Recipe, cells: Sequence[Cell], directory: Path) -> None:
    """The table as Markdown and LaTeX, the same of the newest models, and every cell's origin."""
    results = [cell.result for cell in cells]
    if recipe.layout == "error":
        (directory / "table.md").write_text(error_markdown(recipe, cells))
    elif recipe.layout != "time":
        (directory / "table.md").write_text(markdown(recipe, results))
        (directory / "table.tex").write_text(latex(recipe, results))
        (directory / "table-newest.md").write_text(markdown(recipe, results, newest))
        if recalled := [result for result in results if "worst_recall" in result["last"]]:
            (directory / "table-recall.md").write_text(recall_markdown(recipe, recalled))
        if told := [result for result in results if "fairness" in result]:
            (directory / "fairness.md").write_text(fairness_markdown(recipe, told))
    (directory / "cells.md").write_text(provenance(recipe, results))


def draw_all(cells: Sequence[Cell], recipe: Recipe) -> list[tuple[str, str, Figure]]:
    """File name, caption and figure of everything worth seeing in these cells."""
    if recipe.layout == "error":
        return [
            (
                "estimation-error",
                "Relative error of estimated updates against true gradients.",
                draw_errors(cells, recipe),
            )
        ]
    if recipe.layout == "time":
        return []
    figures: list[tuple[str, str, Figure]] = []
    if recipe.layout == "lines":
        figures.append(
            ("lines", "The mean of the last five evaluations against the setting.", draw_lines(cells, recipe))
        )
    else:
        figures.append(
            ("heat-map", "The mean of the last five evaluations. Darker is worse.", draw_heat_map(cells, recipe))
        )
        figures.append(("curves", "Error on clean test images while the models learn.", draw_curves(cells, recipe)))
    if told := [cell for cell in cells if "fairness" in cell.result]:
        caption = "Who is left behind. Full: without an attack. A vote of 1 is an equal share."
        figures.append(("fairness", caption, draw_fairness(told, recipe)))
    name, attacked = closely(cells, recipe)
    if attacked:
        caption = f"{name}: how abruptly updates changed, honest (blue) against malicious (red)."
        figures.append(("filters", caption, draw_filters(attacked, name)))
        caption = f"{name}: one dot per update, full if accepted, hollow if not. Malicious clients stand at the top."
        figures.append(("timeline", caption, draw_timeline(attacked[0], name)))
    return figures


def closely(cells: Sequence[Cell], recipe: Recipe) -> tuple[str, list[Cell]]:
    """SecureAFL's attacked cells whose updates are on record, of the first row that has any; before them its name."""
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.arrivals and cell.settings["defense"] == "secureafl" and cell.result["malicious"]:
            row = title(row_of(recipe, cell.settings))
            name = row if recipe.row in ROWS_OF_METHODS else f"SecureAFL, {recipe.row} {row}"
            rows.setdefault(name, []).append(cell)
    return next(iter(rows.items()), ("", []))


def html_table(recipe: Recipe, results: Sequence[Result]) -> str:
    """The main table: ours large, the paper's small below."""
    if recipe.layout == "time":
        return time_table(recipe, results)
    attacks, rows, cells = arrange(recipe, results)
    paper = paper_table(recipe) if recipe.layout == "table" else None
    best = best_places(cells, within=recipe.within) if recipe.layout == "table" else set()
    lines = [head(["", *(html.escape(title(attack)) for attack in attacks)])]
    for row in rows:
        lines.append(f"<tr><th>{html.escape(title(row))}</th>")
        for attack in attacks:
            ours, theirs = ours_text(cells.get((row, attack), [])), paper_text(paper, row, attack)
            shown = f"<strong>{ours}</strong>" if (row, attack) in best else ours
            lines.append(f"<td>{shown}{f'<small>{theirs}</small>' if theirs else ''}</td>")
        lines.append("</tr>")
    seeds = len({result["settings"]["seed"] for result in results})
    rounds = sorted({result["settings"]["rounds"] for result in results})
    note = "TER, TER/ASR under backdoors, or RMSE: mean of the last five evaluations, "
    note += f"{rounds[-1]:,} rounds, {seeds} {'seed' if seeds == 1 else 'seeds'}."
    if best:
        note += f" Bold: where the larger of error and attack success is least, or no more than {TIE} above the least,"
        note += f" unless all are; of RMSE, {TIE:.0%} above it."
        if recipe.within:
            note += f" Rows are compared with those of the same {recipe.within.replace('_', ' ')}."
    if paper:
        note += " Small and grey: the paper's figure."
    return "".join(lines) + f"</tbody></table><p>{note}</p>"


def time_table(recipe: Recipe, results: Sequence[Result]) -> str:
    """Time per round, ours and the paper's."""
    paper = paper_table(recipe) or {}
    columns = ("", "clients", "parameters", "gradient", "server", "whole round", "paper, round", "server memory")
    lines = [head(columns)]
    for result in results:
        settings, timing = result["settings"], result["timing"]
        theirs = paper.get(settings["defense"], {}).get(str(settings["num_clients"]))
        keys = ("gradient_seconds", "server_seconds", "seconds_per_round")
        shown = [
            settings["num_clients"],
            f"{result['dim']:,}",
            *(f"{1000 * float(timing[key]):.2f} ms" for key in keys),
            f"{1000 * theirs:.0f} ms" if theirs is not None else "",
            f"{result['server_bytes'] / 1e6:.0f} MB",
        ]
        lines.append(f"<tr><th>{title(settings['defense'])}</th>{data(shown)}</tr>")
    return "".join(lines) + "</tbody></table>"


def html_recalls(recipe: Recipe, results: Sequence[Result]) -> str:
    """How well each model knows the class that it knows least, of those cells that measured it."""
    recalled = [result for result in results if "worst_recall" in result["last"]]
    if not recalled or recipe.layout in {"time", "error"}:
        return ""
    attacks, rows, texts = recalls(recipe, recalled)
    lines = ["<h2>Recall of the worst class</h2>", head(["", *(html.escape(title(attack)) for attack in attacks)])]
    for row in rows:
        lines.append(f"<tr><th>{html.escape(title(row))}</th>{data([texts[row, attack] for attack in attacks])}</tr>")
    note = "Of all classes, the smallest share of test images that were recognised: mean of the last five evaluations."
    return "".join(lines) + f"</tbody></table><p>{note}</p>"


def html_details(results: Sequence[Result]) -> str:
    """What no paper prints: who was accepted, and what it cost."""
    shares = ("honest_accepted", "malicious_accepted", "precision", "recall")
    columns = ("defense", "attack", "seed", *(name.replace("_", " ") for name in shares), "rounds/s", "server", "model")
    lines = ["<h2>Cell by cell</h2>", head(columns, "wide")]
    for result in results:
        settings, found = result["settings"], result["detection"]
        shown = [
            title(settings["defense"]),
            title(settings["attack"]),
            settings["seed"],
            *(percent(found[key]) for key in shares),
            f"{float(result['timing']['rounds_per_second']):.0f}",
            f"{result['server_bytes'] / 1e6:.1f} MB",
            f"<code>{result['digests']['model'][:12]}</code>",
        ]
        lines.append(f"<tr>{data(shown)}</tr>")
    return "".join(lines) + "</tbody></table>"


def head(columns: Sequence[str], kind: str = "") -> str:
    """The opening of a table."""
    return f'<table class="{kind}"><thead><tr>{"".join(f"<th>{name}</th>" for name in columns)}</tr></thead><tbody>'


def data(values: Sequence[object]) -> str:
    """The data cells of one row."""
    return "".join(f"<td>{value}</td>" for value in values)


def number(value: Any, digits: int = 3) -> str:
    return f"{float(value):.{digits}f}"


def percent(value: Any) -> str:
    share = float(value)
    return "" if np.isnan(share) else f"{share:.0%}"
