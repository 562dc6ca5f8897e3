"""A real network with BatchNorm: counters beside the judged vector on both engines, and a warning of its statistics."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from rich.console import Console
from safetensors.numpy import load, load_file
from tests.engines.flower.fake_grid import FakeGrid, reply
from torch import nn

from secureafl import Layout, Machine, MachineSettings, build_defense
from secureafl.engines.batch_norm import running_statistics_warning
from secureafl.engines.flower import FlowerSettings, delta_update, run_federation
from secureafl.engines.flower.codec import Records
from secureafl.engines.nvflare import NVFlareSettings
from secureafl.engines.nvflare.codec import Messages, pack
from secureafl.layout import to_arrays
from secureafl.server import Assignment
from secureafl.types import Reason
from secureafl.wire import Reply

State: TypeAlias = dict[str, torch.Tensor]
COUNTER = "1.num_batches_tracked"
NUM_FLOATS = 3 * 2 + 3 + 4 * 3  # a linear layer's; then weight, bias, mean and variance of BatchNorm


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def trained(state: State) -> State:
    """What a client has after three batches; loading is strict, so every array has to be there."""
    net = network()
    net.load_state_dict(state)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(8, 2)).square().sum().backward()
        optimizer.step()
    return dict(net.state_dict())


FIRST = to_arrays(network().state_dict())
LAYOUT = Layout.of(FIRST)
TASK = Assignment(0, "1", 7, LAYOUT.flatten(FIRST) + np.float32(0.5), b"n" * 16)

Decoded: TypeAlias = Reply
Returned: TypeAlias = Callable[[State], State]


def through_flower(returned: Returned, layout: Layout = LAYOUT) -> tuple[State, Decoded]:
    records = Records(layout, FlowerSettings())
    message = records.encode(TASK, node_id=1, ttl=10.0)
    given = message.content.array_records["arrays"].to_torch_state_dict()
    answer = reply(message, RecordDict({"arrays": ArrayRecord(returned(dict(given)))}))
    return dict(given), records.decode(answer, TASK)


def through_nvflare(returned: Returned, layout: Layout = LAYOUT) -> tuple[State, Decoded]:
    messages = Messages(layout, NVFlareSettings())
    given = {name: torch.from_numpy(array) for name, array in load(messages.encode(TASK)["arrays"]).items()}
    return given, messages.decode({"arrays": pack(to_arrays(returned(given)))}, TASK)


both_codecs = pytest.mark.parametrize("through", [through_flower, through_nvflare])


@both_codecs
def test_a_client_gets_the_first_counter_and_its_own_is_not_judged(through: Any) -> None:
    sent: State = {}

    def returned(given: State) -> State:
        sent.update(trained(given))
        return sent

    given, update = through(returned)
    assert given.keys() == FIRST.keys()
    assert given[COUNTER].dtype == torch.int64
    assert (int(given[COUNTER]), int(sent[COUNTER])) == (0, 3)
    floats = np.concatenate([array.numpy().ravel() for name, array in sent.items() if name != COUNTER])
    assert floats.shape == (NUM_FLOATS,) == (LAYOUT.dim,)
    np.testing.assert_array_equal(update, TASK.params - floats)


@both_codecs
def test_a_client_may_leave_the_counter_out(through: Any) -> None:
    def returned(given: State) -> State:
        return {name: array for name, array in trained(given).items() if name != COUNTER}

    _, update = through(returned)
    assert isinstance(update, np.ndarray)


@both_codecs
def test_a_counter_of_another_shape_is_refused(through: Any) -> None:
    _, update = through(lambda given: {**trained(given), COUNTER: torch.zeros(2, dtype=torch.int64)})
    assert update is Reason.WRONG_SHAPE


@both_codecs
def test_an_update_may_hold_large_carried_arrays(through: Any) -> None:
    _, update = through(lambda given: given, Layout.of({**FIRST, "positions": np.arange(10_000)}))
    assert isinstance(update, np.ndarray)
    assert not update.any()


def federate(tmp_path: Path, **settings: Any) -> tuple[State, str]:
    """The saved model of a federation with one client, and what was printed."""

    def node(message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = "dispatch"  # as Flower would
        given = dict(message.content.array_records["arrays"].to_torch_state_dict())
        if settings.get("client_returns") == "delta":
            return delta_update(message, given, trained(given))
        return reply(message, RecordDict({"arrays": ArrayRecord(trained(given))}))

    made = FlowerSettings(
        stop_after_updates=3,
        stop_after_seconds=60.0,
        defense="asyncsgd",
        poll_seconds=0.001,
        run_dir=tmp_path / "run",
        **settings,
    )
    console = Console(file=io.StringIO(), width=80)
    grid: Any = FakeGrid({1: node})
    result = run_federation(grid, network().state_dict(), made, console=console)
    assert result.verdicts == {("1", "accepted"): 3}
    assert isinstance(console.file, io.StringIO)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    return {name: torch.from_numpy(array) for name, array in saved.items()}, console.file.getvalue()


@pytest.mark.parametrize("client_returns", ["weights", "delta"])
def test_a_federation_saves_the_whole_model_and_warns_once(tmp_path: Path, client_returns: str) -> None:
    saved, printed = federate(tmp_path, client_returns=client_returns)
    network().load_state_dict(saved)
    assert saved[COUNTER] == 0
    [line] = [line for line in printed.splitlines() if "warning" in line]
    assert line == running_statistics_warning(LAYOUT, "weights")


def test_the_warning_names_the_statistics_and_what_to_do() -> None:
    warning = running_statistics_warning(LAYOUT, "weights")
    assert warning is not None
    assert "running statistics 1.running_mean, 1.running_var are judged" in warning
    assert "replace BatchNorm by GroupNorm or LayerNorm" in warning
    assert "keep them at the clients" in warning
    many = Layout.of({f"{i}.running_var": np.ones(1) for i in range(6)})
    assert "0.running_var, 1.running_var, 2.running_var, 3.running_var and 2 more" in str(
        running_statistics_warning(many, "delta")
    )
    assert "in no gradient" in str(running_statistics_warning(LAYOUT, "gradient"))


def test_weights_and_counters_are_no_reason_for_a_warning() -> None:
    plain = nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4, track_running_stats=False))
    assert running_statistics_warning(Layout.of(to_arrays(plain.state_dict())), "weights") is None
    counted = Layout.of({"w": np.zeros(1), "running_mean": np.zeros(1, np.int64)})
    assert running_statistics_warning(counted, "weights") is None


@pytest.mark.parametrize("defense", ["asyncsgd", "secureafl"])
def test_honest_clients_can_make_a_variance_negative(defense: str) -> None:
    machine = Machine(build_defense(defense, 1, {}), np.ones(1, np.float32), MachineSettings(server_lr=1.0))
    tickets = [machine.issue(machine.enrol(name)) for name in "ab"]
    for ticket in tickets:
        machine.receive(ticket.number, machine.model_of(ticket).params - np.float32(0.3))
    assert machine.model.params == pytest.approx(-0.4)
