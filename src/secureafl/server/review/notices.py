"""What an operator should know of a client: what their own settings say of it, and when it is heard less than it looks
like it should be.

Honest clients whose data are alike keep asking for much the same, as colluders do, and lose weight like them. Only the
operator can tell the two apart, so they are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from secureafl.server.review.audit import ClientRecord
from secureafl.text import visible

MIN_LOW_VOTES = 20
"""Accepted updates in a row with a low vote, after which the operator is told."""


def said_of(client: str, facts: Mapping[str, Any]) -> list[str]:
    """What the settings of a run's defense say of this client by name: `vouched`, or `weights 0.5`."""
    said = []
    for setting, value in facts.get("defense_settings", {}).items():
        if isinstance(value, Mapping) and client in value:
            said.append(f"{setting} {value[client]:g}")
        elif isinstance(value, list | tuple) and client in value:
            said.append(setting)
    return said


def notices(records: Iterable[ClientRecord], facts: Mapping[str, Any]) -> dict[str, str]:
    """Clients that look honest and hardly count, with a sentence for the operator; not those whom settings name."""
    return {
        record.client: _sentence(record)
        for record in records
        if record.num_low_votes >= MIN_LOW_VOTES and not said_of(record.client, facts)
    }


def _sentence(record: ClientRecord) -> str:
    alike = record.alike or 1.0
    why = f"about {alike:.0f} clients keep asking for much the same" if alike >= 2.0 else "too many clients are new"
    return (
        f"{visible(record.client)}: its last {record.num_low_votes} updates were accepted, but its vote weighs"
        f" {record.vote:.2g}, as {why}. If you know this client, name it in the setting `vouched`."
    )
