"""Who took part in a run, who was accepted, and why not: read from its journal."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.names import ClientNames
from secureafl.server.review.influence import influence
from secureafl.server.review.opened import RecordedRun
from secureafl.text import one_line
from secureafl.types import Reason

LOW_VOTE = 0.5
"""A vote that weighs less than this is low."""


@dataclass(slots=True)
class ClientRecord:
    """One client's part in a run."""

    client: str
    arrivals: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    """Events that were not arrivals: expired, client-error, left, …"""
    factors: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    last_seen: float = 0.0
    num_over_budget: int = 0
    """Accepted updates that moved nothing, because the client had come too often."""
    vote: float | None = None
    """What its vote weighed at its newest update; None if the defense does not say."""
    steps_left: float | None = None
    """How often it might still move the model after its newest update; None if the defense sets no budget."""
    alike: float | None = None
    """Clients that kept asking for much the same then, itself included."""
    num_low_votes: int = 0
    """Its newest updates in a row that were accepted with a vote below LOW_VOTE."""
    epsilon: float | None = None
    """What it said, with its newest update, that its updates give away of its data; None if it said nothing."""
    delta: float | None = None
    """The chance, in its own words, that it is more."""
    influence: float | None = None
    """How far the model follows it; None if the defense cannot tell, or nothing is known yet."""

    def add(self, entry: Entry) -> None:
        """Take one more row about this client into account, other than that it was given work."""
        self.last_seen = entry.seconds
        if entry.event is not Event.ARRIVAL:
            if entry.event is Event.REPORTED:
                self.epsilon, self.delta = entry.evidence.get("epsilon"), entry.evidence.get("delta")
            elif entry.event is not Event.JOINED:
                self.troubles[entry.event] += 1
            return
        self.arrivals += 1
        self.accepted += bool(entry.accepted)
        if not entry.accepted:
            self.rejected[entry.reason] += 1
        self.num_over_budget += entry.reason == Reason.OVER_BUDGET
        self.vote, self.alike = entry.evidence.get("vote"), entry.evidence.get("alike", self.alike)
        self.steps_left = entry.evidence.get("steps_left", self.steps_left)
        is_low = self.vote is not None and self.vote < LOW_VOTE
        self.num_low_votes = self.num_low_votes + 1 if entry.accepted and is_low else 0
        if "lipschitz_factor" in entry.evidence:
            self.factors.append(entry.evidence["lipschitz_factor"])
        if "staleness" in entry.evidence:
            self.staleness.append(entry.evidence["staleness"])

    @property
    def share_accepted(self) -> float:
        return self.accepted / self.arrivals if self.arrivals else 0.0

    @property
    def usual_factor(self) -> float | None:
        """The median of its Lipschitz factors that are finite."""
        if not self.factors:  # as nearly all of a million clients, each of whom a page that sorts them asks
            return None
        finite = [factor for factor in self.factors if math.isfinite(factor)]
        return statistics.median(finite) if finite else None

    @property
    def mean_staleness(self) -> float | None:
        return math.fsum(self.staleness) / len(self.staleness) if self.staleness else None

    def summary(self) -> dict[str, object]:
        """The record as plain values."""
        finite = [factor for factor in self.factors if np.isfinite(factor)]
        low, middle, high = np.percentile(finite, [10, 50, 90]).tolist() if finite else (None, None, None)
        return {
            "client": self.client,
            "arrivals": self.arrivals,
            "accepted": self.accepted,
            "rejected": dict(self.rejected),
            "over budget": self.num_over_budget,
            "troubles": dict(self.troubles),
            "lipschitz factor 10%": low,
            "lipschitz factor 50%": middle,
            "lipschitz factor 90%": high,
            "staleness": self.mean_staleness,
            "last seen": self.last_seen,
            "vote": self.vote,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "influence": self.influence,
        }

    def happened(self) -> Counter[str]:
        """Why updates of it did not count, or moved nothing, and what else happened, each with how often."""
        return self.rejected + Counter({str(Reason.OVER_BUDGET): self.num_over_budget}) + self.troubles


def client_records(run: RecordedRun) -> list[ClientRecord]:
    """Every client of the run, the least accepted first."""
    records: dict[str, ClientRecord] = {}
    for entry in run.journal.entries(leave_out=Event.ISSUED):
        if entry.client:
            if entry.client not in records:
                records[entry.client] = ClientRecord(entry.client)
            records[entry.client].add(entry)
    for client, share in influence(run).items():
        if client in records:
            records[client].influence = share
    return least_accepted(records.values())


def client_record(run: RecordedRun, client: str) -> tuple[ClientRecord, list[Entry]] | None:
    """One client's part, without its influence, and the rows it is made of; None if there is no such client.

    Reads the rows of this client alone.
    """
    record, entries = ClientRecord(client), list(run.journal.entries(leave_out=Event.ISSUED, client=client))
    for entry in entries:
        record.add(entry)
    return (record, entries) if entries else None


def least_accepted(records: Iterable[ClientRecord]) -> list[ClientRecord]:
    """The same records, those first whose updates were accepted least often."""
    return sorted(records, key=lambda record: (record.share_accepted, record.client))


def arrival(run: RecordedRun, version: int) -> Entry | None:
    """The arrival that met the model of this version."""
    return next(run.journal.entries(Event.ARRIVAL, version=version), None)


def explain(entry: Entry, names: ClientNames = ClientNames()) -> list[str]:
    """One arrival's verdict in plain words, a sentence each."""
    told = {name: f"{value:.4g}" for name, value in entry.evidence.items()}
    client = names.shown_with_id(entry.client)
    lines = [
        f"Arrival {entry.version}: client {client} sent an update for version {entry.base} of the model,"
        f" {entry.seconds:.1f} s into the run; {entry.version - (entry.base or 0)} other arrivals came in between.",
        _VERDICTS.get(entry.reason, "The defense's word for it: {reason}.").format(
            reason=one_line(entry.reason), **{name: told.get(name, "?") for name in _NAMES}
        ),
    ]
    if "shortened_to" in told:
        lines.append(f"It was too long: it counted as {told['shortened_to']} of its length.")
    if "change_shortened_to" in told:
        share = told["change_shortened_to"]
        lines.append(f"It was too far from the client's last update: {share} of that change counted.")
    if "taken_back" in told:
        lines.append(
            "With it three clients were heard, and one of the others proves far too long: the first steps of the run,"
            f" {told['taken_back']} in all, were taken back, and what that client had sent was dropped."
        )
    if "direction_norm" in told:
        lines.append(f"The model then moved along a direction of length {told['direction_norm']}.")
    elif not entry.accepted:
        lines.append("The model did not move.")
    return lines


EVIDENCE: dict[str, str] = {
    "lipschitz_factor": "how much the client's update changed per unit of change of the model",
    "threshold": "the limit it was held against",
    "norm": "length of the update",
    "shortened_to": "share of its length that counts; only where it was too long",
    "change_shortened_to": "share of its change since the client's last update that counts; only where it was too far",
    "staleness": "arrivals since the model it was computed on",
    "agreement": "how far the client's updates point the way of all votes together, averaged over time",
    "pull": "how far what the client keeps asking for points the way of what all others do",
    "curvature": "how far the client's updates push back from where the model went, averaged over time",
    "alike": "clients who keep asking for much the same as this one, itself included",
    "vote": "what the client's vote weighs, from 0 to 1",
    "steps_left": "how often the client may move the model before it has to wait",
    "calibration": "share of the predicted changes that real updates bore out",
    "direction_norm": "length of the direction that the model then moved along",
    "taken_back": "length of the first steps, taken back because one of the first updates was far too long",
    "cosine": "how far it points the way of the reference: 1 the same, -1 the opposite",
    "distance": "distance from the server's own gradient, or from the average update for the same model",
    "entropy": "how unsure the model is that it leads to",
    "loss": "loss of the model that it leads to, on trusted data",
    "weight": "factor on the update before it moved the model",
    "dampening": "factor on the update for its staleness",
    "reference_norm": "length of the server's own gradient",
    "typical_norm": "typical length of an update",
    "trust": "how far the client is trusted",
    "buffer": "buffer that it went into",
    "num_empty_buffers": "buffers that are still empty",
    "num_dropped": "updates of the buffer that were dropped",
}
"""What the numbers behind a verdict mean, in a few words each."""

_NAMES = ("lipschitz_factor", "threshold", "norm", "agreement", "cosine", "distance", "entropy", "reference_norm")
_VERDICTS: dict[str, str] = {
    Reason.ACCEPTED: "It was accepted.",
    Reason.FIRST_CONTACT: "It was the client's first update: accepted, and shortened if too long (it was {norm} long).",
    Reason.BUFFERED: "It was accepted into a buffer; the model moves once every buffer holds something.",
    Reason.OVER_BUDGET: "It was accepted and renewed the client's vote, but the model did not move: this client comes"
    " far more often than others, and had no step left.",
    Reason.FROM_ABOVE: "It came from the server above: the model moved by all of it, and no defense judged it.",
    Reason.TOO_LONG: "It was rejected: it was many times as long as is usual ({norm}).",
    Reason.CHANGED_TOO_ABRUPTLY: "It was rejected: since its last accepted update the client changed {lipschitz_factor}"
    " per unit of change of the model, more than the {threshold} that most updates stay under.",
    Reason.CHANGED_ON_SAME_MODEL: "It was rejected: the client sent something else for the very same model.",
    Reason.FILTER_CLOSED: "It was rejected: after first contact this configuration accepts no one.",
    Reason.AGAINST_CONSENSUS: "It was rejected: over time the client pulls against all others (average agreement"
    " {agreement}), far more than others do.",
    Reason.TOO_FREQUENT: "It was rejected: this client was among the last ones accepted.",
    Reason.AGAINST_REFERENCE: "It was rejected: it points away from the server's reference (cosine {cosine}).",
    Reason.FAR_FROM_REFERENCE: "It was rejected: it lies {distance} from the server's gradient, beyond {threshold}.",
    Reason.FAR_FROM_GROUP: "It was rejected: of the updates for the same model, it was among those furthest from all"
    " others.",
    Reason.TOO_UNCERTAIN: "It was rejected: the model it leads to is unsure (entropy {entropy}, at most {threshold}).",
    Reason.NOT_FINITE: "It was refused: it holds values that are not finite.",
    Reason.TOO_LARGE: "It was refused: it is too large.",
    Reason.WRONG_SHAPE: "It was refused: an array has another shape than the model's.",
    Reason.WRONG_DTYPE: "It was refused: an array does not hold real numbers.",
    Reason.WRONG_NAMES: "It was refused: its arrays are not those of the model.",
    Reason.MALFORMED: "It was refused: there was no readable update in it.",
    Reason.TICKET_CLOSED: "It was refused: it is for an assignment that was answered or withdrawn before.",
    Reason.BAD_SIGNATURE: "It was refused: it was not signed with this client's key for this assignment.",
    Reason.TOO_STALE: "It was refused: it is for a model that is too old.",
    Reason.MODEL_OVERFLOW: "It was refused: the step would have left the range of numbers.",
}
