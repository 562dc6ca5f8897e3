"""Results that were kept before settings were renamed are found and read."""

import json
from pathlib import Path

import pytest

from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.earlier_names import RESULT, read_result

KEPT = Path(__file__).parents[3] / "results" / "lab" / "cells"


@pytest.mark.parametrize(
    "name", ["fashion-mnist-secureafl-scaling-6cd0a10c0bff", "fashion-mnist-secureafl-neurotoxin-41ed283d9160"]
)
def test_a_kept_result_has_the_id_of_the_same_settings_in_todays_names(name: str) -> None:
    as_written = json.loads((KEPT / name / RESULT).read_text())["settings"]
    assert "silence_after" in as_written["defense_settings"]
    read = read_result(KEPT / name)["settings"]
    assert "exclude_after" in read["defense_settings"]
    assert "silence_after" not in read["defense_settings"]
    for settings in (as_written, read):
        assert CellSettings(**settings).cell_id() == name
    assert CellSettings(**as_written).complete() == CellSettings(**read).complete()
    if "neurotoxin" in name:
        assert (as_written["attack_settings"]["reference"], read["attack_settings"]["reference"]) == (
            "uploads",
            "updates",
        )


def test_the_region_above_is_read_in_todays_names_too() -> None:
    def cell(name: str) -> CellSettings:
        own = {"top_defense_settings": {name: 2}}
        return CellSettings(num_clients=100, protocol="regions", protocol_settings=own)

    assert cell("exclude_after").cell_id() == cell("silence_after").cell_id()
    assert cell("silence_after").complete()["protocol_settings"]["top_defense_settings"]["exclude_after"] == 2
