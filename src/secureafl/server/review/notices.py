"""What an operator should know of a client: what their own settings say of it, and when it is heard less than it looks
like it should be.

Honest clients whose data are alike keep asking for much the same, as colluders do, and lose weight like them. Where
hardly any client returns, newcomers are most of the federation and have few of its votes, as many new names of one
attacker would. Only the operator can tell honest clients from others there, so they are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from secureafl.server.review.audit import ClientRecord

MIN_RETURNED = 10
"""Fewer clients with a whole vote limit nobody."""
MANY_TIMES = 4.0
"""Newcomers who have earned so many times the votes that they may have together are worth a notice."""
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


ADVICE = (
    "Accepted, but their votes have weighed little for long. If you know one of them, name it in the setting `vouched`."
)
"""What the operator is told of those that `notices` names."""


def notices(records: Iterable[ClientRecord], facts: Mapping[str, Any]) -> dict[str, str]:
    """Clients that look honest and hardly count, with the reason in a few words; not those whom settings name."""
    return {
        record.client: _words(record)
        for record in records
        if record.num_low_votes >= MIN_LOW_VOTES and not said_of(record.client, facts)
    }


def of_newcomers(records: Iterable[ClientRecord], facts: Mapping[str, Any]) -> str | None:
    """What to do where newcomers have earned far more votes than they may have together; None where they have not."""
    settings = facts.get("defense_settings", {})
    full_after, share = settings.get("full_vote_after"), settings.get("newcomer_share")
    if not full_after or not share:
        return None
    counts = [record.accepted for record in records]
    num_old = sum(count >= full_after for count in counts)
    earned = sum(count for count in counts if count < full_after) / full_after
    if num_old < MIN_RETURNED or earned < MANY_TIMES * share / (1.0 - share) * num_old:
        return None
    return (
        f"{len(counts) - num_old:,} of {len(counts):,} clients have had fewer than {full_after} updates accepted, so "
        f"together they have {share:.0%} of the votes at most. If yours seldom return, and nobody can enrol many "
        "names, set full_vote_after = 1."
    )


def _words(record: ClientRecord) -> str:
    alike = record.alike or 1.0
    why = f"about {alike:.0f} clients keep asking for much the same" if alike >= 2.0 else "too many clients are new"
    return f"vote {record.vote:.2g} at its last {record.num_low_votes} updates: {why}"
