"""A Grid in memory: nodes are functions from a message to an answer, or to nothing yet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

Node = Callable[[Message], Message | None]
"""Called at each pull; None means: not ready."""


class FakeGrid:
    """Implements what the adapter uses of `flwr.serverapp.Grid`."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.pushed: list[Message] = []
        self.refused: set[int] = set()
        self.most_open = 0
        self._open: dict[str, Message] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        [message] = messages  # the adapter pushes one message per call
        if message.metadata.dst_node_id in self.refused:
            return [""]
        with self._lock:
            number = f"message-{next(self._ids)}"
            self._open[number] = message
            self.pushed.append(message)
            self.most_open = max(self.most_open, len(self._open))
        return [number]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        [number] = message_ids
        message = self._open[number]
        node = self.nodes.get(message.metadata.dst_node_id)
        answer = error(message, 5, "node gone") if node is None else node(message)
        if answer is None:
            return []
        with self._lock:
            del self._open[number]
        return [answer]


def weights_of(message: Message) -> dict[str, npt.NDArray[Any]]:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def answer(message: Message, arrays: Mapping[str, npt.NDArray[Any]]) -> Message:
    """What an ordinary ClientApp returns."""
    record = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
    return reply(message, RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 10})}))


def reply(message: Message, content: RecordDict) -> Message:
    return Message(content, dst_node_id=1, message_type=message.metadata.message_type)


def error(message: Message, code: int, reason: str) -> Message:
    made = reply(message, RecordDict())
    return Message(Error(code, reason), reply_to=made)


def trainer(target: float, step: float = 0.5) -> Callable[[Message], Message]:
    """An honest node: moves each weight part of the way to its target."""

    def node(message: Message) -> Message:
        return answer(message, {name: w + step * (target - w) for name, w in weights_of(message).items()})

    return node
