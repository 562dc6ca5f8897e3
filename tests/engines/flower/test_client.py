from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from rich.console import Console
from tests.engines.flower.fake_grid import FakeGrid, Node, trainer, weights_of

from secureafl.engines.flower import FlowerSettings, delta_update, gradient_update, run_federation, sign_updates
from secureafl.engines.signing import write_key_pair
from secureafl.errors import SettingsError

MODEL = {"w": np.zeros(2, np.float32)}


def run(node: Node, **settings: object) -> np.ndarray:
    made = FlowerSettings(stop_after_updates=1, defense="asyncsgd", poll_seconds=0.001, **settings)  # type: ignore[arg-type]
    result = run_federation(FakeGrid({1: node}), MODEL, made, console=Console(quiet=True))  # type: ignore[arg-type]
    return np.asarray(result.arrays["w"])


def localise(message: Message) -> Message:
    """Give a pushed message the id that Flower would."""
    message.metadata.__dict__["_message_id"] = "dispatch"
    return message


def test_weights_delta_and_gradient_clients_meet_at_the_same_model() -> None:
    def delta(message: Message) -> Message:
        start = weights_of(message)
        return delta_update(localise(message), start, {"w": start["w"] + 2}, {"loss": 0.5})

    def gradient(message: Message) -> Message:
        return gradient_update(localise(message), {"w": np.full(2, -4.0)})

    np.testing.assert_array_equal(run(trainer(2.0, step=1.0)), [2, 2])
    np.testing.assert_array_equal(run(delta, client_returns="delta"), [2, 2])
    np.testing.assert_array_equal(run(gradient, client_returns="gradient", server_lr=0.5), [2, 2])


def test_a_delta_holds_no_integer_and_no_boolean_arrays() -> None:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    start = {"w": np.ones(2), "mask": np.array([True, False]), "steps": np.array(0)}
    sent = delta_update(localise(message), start, {"w": np.zeros(2), "mask": start["mask"]})
    np.testing.assert_array_equal(weights_of(sent)["w"], [1, 1])
    assert weights_of(sent).keys() == {"w"}


def context(**node_config: str) -> Context:
    return Context(run_id=1, node_id=1, node_config=dict(node_config), state=RecordDict(), run_config={})


def test_the_signing_mod_makes_answers_the_server_believes(tmp_path: Path) -> None:
    keys_file, key = tmp_path / "keys.toml", tmp_path / "node.pem"
    keys_file.write_text(f'1 = "{write_key_pair(key)}"\n')

    def node(message: Message) -> Message:
        return sign_updates(message, context(**{"secureafl-key": str(key)}), lambda m, _: trainer(2.0, step=1.0)(m))

    np.testing.assert_array_equal(run(node, keys_file=keys_file), [2, 2])


def test_without_a_key_the_signing_mod_says_what_to_do() -> None:
    message = FakeGrid({})
    with pytest.raises(SettingsError, match=r"--node-config 'secureafl-key="):
        sign_updates(message, context(), lambda m, _: m)  # type: ignore[arg-type]
