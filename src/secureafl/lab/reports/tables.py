"""A sweep's figures for a page and for a paper: Markdown and LaTeX, ours beside the paper's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from secureafl.errors import SettingsError
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.reports.plots import Cell, title
from secureafl.lab.sweeps.naming import in_order, method_of, row_of, setting
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes.paper import paper_table

Result = Mapping[str, Any]
Value = Callable[[Result, str], float]
"""One metric of one cell."""
Place = tuple[str, str]
"""A row and an attack."""

FAIRNESS = {
    "worst_recall": "recall of the worst class",
    "worst_group_accepted": "accepted, worst honest group",
    "worst_honest_accepted": "accepted, worst honest client",
    "lowest_honest_vote": "lowest honest vote (1: an equal share)",
    "malicious_votes": "malicious clients' share of all votes",
}
"""What is said of who is left behind."""

TIE = 0.01
"""Cells that are worse than their column's best by no more than this count as best, too; in an RMSE, which has a unit,
by this share of the best.
"""


def published(result: Result, metric: str) -> float:
    """The mean of the last five evaluations of the published model: the average of the last versions, whatever the
    defense. One rule for all.
    """
    return float(result["last"][f"published_{metric}"])


def newest(result: Result, metric: str) -> float:
    """The same of the newest model, whatever the defense."""
    return float(result["last"][metric])


def arrange(recipe: Recipe, results: Sequence[Result]) -> tuple[list[str], list[str], dict[Place, list[Result]]]:
    """Columns in the paper's order, rows, and each place's results, one per seed."""
    cells: dict[Place, list[Result]] = {}
    for result in results:
        settings = result["settings"]
        cells.setdefault((table_row(recipe, settings), settings["attack"]), []).append(result)
    return in_order(attack for _, attack in cells), list(dict.fromkeys(row for row, _ in cells)), cells


def table_row(recipe: Recipe, settings: Mapping[str, Any]) -> str:
    """The row of a cell with these settings: figures over a setting have the method in front of it."""
    row = row_of(recipe, settings)
    return f"{title(method_of(settings))}, {row}" if recipe.layout in {"lines", "time"} else row


def best_places(cells: Mapping[Place, Sequence[Result]], value: Value = published, within: str = "") -> set[Place]:
    """Where each attack does least harm: error or backdoor, whichever is larger. Where all are alike, no one is best.

    within  a setting; cells are compared with those that have the same value
    """
    filled = {place: results for place, results in cells.items() if results}
    column = {place: (place[1], setting(results[0]["settings"], within)) for place, results in filled.items()}
    found = {place: _values(results, value) for place, results in filled.items()}
    harm = {place: max(float(np.mean(one)) for one in values.values()) for place, values in found.items()}
    least = {key: min(harm[place] for place in harm if column[place] == key) for key in set(column.values())}
    ties = {place: TIE * (least[column[place]] if "rmse" in values else 1.0) for place, values in found.items()}
    best = {place for place in harm if harm[place] <= least[column[place]] + ties[place]}
    told_apart = {column[place] for place in harm.keys() - best}
    return {place for place in best if column[place] in told_apart}


def ours_text(results: Sequence[Result], value: Value = published, digits: int = 2) -> str:
    """TER, TER/ASR, or RMSE with three digits: the mean over seeds, with the deviation where there are several."""
    if not results:
        return ""
    found = _values(results, value)
    return "/".join(_spread(values, 3 if name == "rmse" else digits) for name, values in found.items())


def paper_text(paper: Any, row: str, attack: str) -> str:
    """The paper's figure in the paper's notation; empty where it has none."""
    figure = (paper or {}).get(row.removesuffix("-paper"), {}).get(attack)
    if figure is None:
        return ""
    return "/".join(f"{part:.2f}" for part in figure) if isinstance(figure, list) else f"{float(figure):.2f}"


def markdown(recipe: Recipe, results: Sequence[Result], value: Value = published) -> str:
    """The recipe's table, each column's best in bold; the paper's figures in parentheses."""
    attacks, rows, texts = _filled(recipe, results, value, "**{}**")
    lines = [_row(["", *(title(attack) for attack in attacks)]), _row(["---"] * (1 + len(attacks)))]
    lines += [_row([title(row), *(texts[row, attack] for attack in attacks)]) for row in rows]
    return "\n".join(lines) + "\n"


def recalls(recipe: Recipe, results: Sequence[Result]) -> tuple[list[str], list[str], dict[Place, str]]:
    """Columns, rows, and the recall of the worst class at every place, of the model that counts."""
    attacks, rows, cells = arrange(recipe, results)
    texts = dict.fromkeys(itertools.product(rows, attacks), "")
    for place, found in cells.items():
        texts[place] = _spread([published(result, "worst_recall") for result in found], 3)
    return attacks, rows, texts


def recall_markdown(recipe: Recipe, results: Sequence[Result]) -> str:
    """The recall of the worst class, laid out as the recipe's table."""
    attacks, rows, texts = recalls(recipe, results)
    lines = [_row(["", *(title(attack) for attack in attacks)]), _row(["---"] * (1 + len(attacks)))]
    lines += [_row([title(row), *(texts[row, attack] for attack in attacks)]) for row in rows]
    return "\n".join(lines) + "\n"


def fairness_of(result: Result, measure: str) -> float | None:
    """One of FAIRNESS; None where it was not measured."""
    found = {**result["fairness"], "worst_recall": result["last"].get("published_worst_recall")}[measure]
    return None if found is None else float(found)


def fairness_markdown(recipe: Recipe, results: Sequence[Result]) -> str:
    """Cell by cell: the class that is known least, whose updates were accepted least, and who had which votes."""
    lines = [_row(["", "attack", "seed", *FAIRNESS.values()]), _row(["---"] * (3 + len(FAIRNESS)))]
    for result in results:
        settings = result["settings"]
        values = [fairness_of(result, measure) for measure in FAIRNESS]
        figures = ["" if value is None else f"{value:.3f}" for value in values]
        lines.append(
            _row([title(table_row(recipe, settings)), title(settings["attack"]), str(settings["seed"]), *figures])
        )
    return "\n".join(lines) + "\n"


def latex(recipe: Recipe, results: Sequence[Result]) -> str:
    """The same as a LaTeX tabular, for booktabs."""
    attacks, rows, texts = _filled(recipe, results, published, r"\textbf{{{}}}")
    lines = [
        rf"\begin{{tabular}}{{l{'c' * len(attacks)}}}",
        r"\toprule",
        " & ".join(["", *(_escaped(title(attack)) for attack in attacks)]) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        shown = [title(row), *(texts[row, attack] for attack in attacks)]
        lines.append(" & ".join(_escaped(text) for text in shown).replace("±", r"$\pm$") + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def error_markdown(recipe: Recipe, cells: Sequence[Cell]) -> str:
    """How far estimates were from true gradients, by interval of rounds, beside bare last updates and the paper's."""
    intervals = [(first, last or math.inf, theirs) for first, last, theirs in paper_table(recipe)]
    heads = [f"{first}-{last}" if last < math.inf else f"from {first}" for first, last, _ in intervals]
    lines = [_row(["mean relative error in rounds", *heads]), _row(["---"] * (1 + len(heads)))]
    lines.append(_row(["the paper's", *(f"{theirs:.2f}" for *_, theirs in intervals)]))
    for cell in cells:
        for curve, suffix in (("estimation_error", ""), ("stale_error", ", bare last updates")):
            rounds, values = cell.curves[curve]
            parts = [values[(rounds >= first) & (rounds < last)] for first, last, _ in intervals]
            shown = [f"{np.mean(part):.2f}" if len(part) else "" for part in parts]
            lines.append(_row([title(row_of(recipe, cell.settings)) + suffix, *shown]))
    return "\n".join(lines) + "\n"


def provenance(recipe: Recipe, results: Sequence[Result]) -> str:
    """Cell by cell in Markdown: figures, who was accepted, their commit, and the command that repeats them."""
    names = [name for name in ("ter", "rmse", "asr") if any(name in result["last"] for result in results)]
    heads = [f"{kind} {name.upper()}" for name in names for kind in ("newest", "published")]
    columns = ["", "attack", "seed", *heads, "honest accepted", "malicious accepted", "commit", "command"]
    lines = [_row(columns), _row(["---"] * len(columns))]
    for result in results:
        settings, last, found = result["settings"], result["last"], result["detection"]
        figures = [last.get(f"{prefix}{name}") for name in names for prefix in ("", "published_")]
        shares = [found[key] for key in ("honest_accepted", "malicious_accepted")]
        lines.append(
            _row(
                [
                    title(table_row(recipe, settings)),
                    title(settings["attack"]),
                    str(settings["seed"]),
                    *("" if figure is None else f"{float(figure):.3f}" for figure in figures),
                    *("" if np.isnan(float(share)) else f"{float(share):.0%}" for share in shares),
                    f"`{result['provenance']['commit'][:7]}`",
                    f"`{command_of(result)}`",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def command_of(result: Result) -> str:
    """What to type to run this cell alone; what was typed, for settings that only an older version knows, and for the
    user's own code that is no longer found."""
    try:
        return CellSettings(**result["settings"]).command()
    except SettingsError:
        return str(result["provenance"]["command"])


def _filled(
    recipe: Recipe, results: Sequence[Result], value: Value, bold: str
) -> tuple[list[str], list[str], dict[Place, str]]:
    """Columns, rows, and the text of every place; `bold` is what the best are put into."""
    attacks, rows, cells = arrange(recipe, results)
    compared = recipe.layout == "table"
    paper, best = (paper_table(recipe), best_places(cells, value, recipe.within)) if compared else (None, set())
    texts: dict[Place, str] = {}
    for place in itertools.product(rows, attacks):
        ours, theirs = ours_text(cells.get(place, []), value, digits=3), paper_text(paper, *place)
        marked = bold.format(ours) if place in best else ours
        texts[place] = f"{marked} ({theirs})" if ours and theirs else marked
    return attacks, rows, texts


def _values(results: Sequence[Result], value: Value) -> dict[str, list[float]]:
    """Every metric the task has, seed by seed."""
    names = [name for name in ("ter", "rmse", "asr") if name in results[0]["last"]]
    return {name: [value(result, name) for result in results] for name in names}


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean}±{np.std(values, ddof=1):.{digits}f}"


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escaped(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")
