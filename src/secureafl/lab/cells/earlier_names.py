"""Results that were kept before a setting was renamed are found, and read in today's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secureafl.defenses import SecureAFLSettings

RESULT = "result.json"
_OF_DEFENSES = SecureAFLSettings.earlier_names
_OF_REFERENCE = {"uploads": "updates"}
"""A value of Neurotoxin's setting `reference`."""


def read_result(directory: Path) -> dict[str, Any]:
    """The result of a finished cell."""
    result = dict(json.loads((directory / RESULT).read_text()))
    return {**result, "settings": _spelt(result["settings"], _OF_DEFENSES, _OF_REFERENCE)}


def first_spelling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's settings under the names that they first had: what its id is made from never changes."""
    return _spelt(settings, _turned(_OF_DEFENSES), _turned(_OF_REFERENCE))


def _turned(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}


def _spelt(settings: Mapping[str, Any], defenses: Mapping[str, str], reference: Mapping[str, str]) -> dict[str, Any]:
    """The settings with other names for those of SecureAFL, wherever it judges, and for one of Neurotoxin's values."""
    found = dict(settings)
    if found["defense"] == "secureafl":
        found["defense_settings"] = _keys(found["defense_settings"], defenses)
    protocol = found.get("protocol_settings", {})
    if protocol.get("top_defense") == "secureafl":
        top = _keys(protocol["top_defense_settings"], defenses)
        found["protocol_settings"] = {**protocol, "top_defense_settings": top}
    if found["attack"] == "neurotoxin":
        own = found["attack_settings"]
        found["attack_settings"] = {**own, "reference": reference.get(own["reference"], own["reference"])}
    return found


def _keys(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in settings.items()}
