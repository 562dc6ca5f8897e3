"""The loop on a problem small enough to follow: a linear model, gradients worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secureafl import Machine, MachineSettings, SecureAFL, build_defense
from secureafl.lab.attacks.attack import Stateless, TriggerView, View
from secureafl.lab.simulation.protocols import PaperProtocol
from secureafl.lab.simulation.simulate import Attacker, ClientData, Simulation
from secureafl.layout import Layout
from secureafl.types import ClientId, Vector, Verdict
from secureafl.wire import Wire, rounded

NUM_CLIENTS, DIM = 4, 3


class Mean:
    """A task whose gradient at w is w minus the mean of the batch's labels, in every coordinate."""

    num_classes = None
    layout = Layout.of({"w": np.zeros(DIM, np.float32)})

    def gradient(self, params: Vector, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Vector:
        return np.asarray(params - y.mean(), np.float32)


class Unmarked:
    def apply(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return x.astype(np.float32)

    def quadrant(self, j: int) -> TriggerView:
        return self


class Recorder(Stateless):
    """Sends NaN and keeps what it was shown."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def update(self, view: View) -> Vector:
        self.views.append(view)
        return np.full(DIM, np.nan, np.float32)


class Renaming(Recorder):
    """Takes a new name after each update, and keeps what honest clients sent."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[tuple[ClientId, Vector]] = []

    def leaves_name(self, verdict: Verdict) -> bool:
        assert verdict.reason == "not-finite"  # what the client was told
        return True

    def watch(self, client: ClientId, update: Vector) -> None:
        self.watched.append((client, update.copy()))


def simulation(
    defense: str = "asyncsgd", attack: Recorder | None = None, needs_shadow: bool = False, wire: Wire = "float32"
) -> Simulation:
    y = np.repeat(np.arange(NUM_CLIENTS, dtype=np.float32), 5)  # client k's labels are all k
    shards = [np.arange(5 * k, 5 * k + 5) for k in range(NUM_CLIENTS)]
    attacker = None
    if attack is not None:
        attacker = Attacker(attack, frozenset({ClientId(1), ClientId(3)}), Unmarked(), 0, needs_shadow)
    machine = Machine(
        build_defense(defense, DIM),
        np.zeros(DIM, np.float32),
        MachineSettings(server_lr=0.1, keep_recent=2, count_refused=True),
    )
    return Simulation(
        task=Mean(),
        data=ClientData(np.zeros((20, 1, 1, 1), np.uint8), y, shards, batch_size=2),
        machine=machine,
        protocol=PaperProtocol(NUM_CLIENTS, 2, seed=3),
        seed=3,
        attacker=attacker,
        wire=wire,
    )


def test_an_honest_round_is_one_gradient_step() -> None:
    run = simulation()
    verdict = run.step()
    client = int(run.trace.columns()["client"][0])
    assert verdict.accepted
    np.testing.assert_allclose(run.machine.model.params, np.full(DIM, 0.1 * client), rtol=1e-6)  # 0 - 0.1 (0 - k)


def test_batches_come_from_the_clients_own_data_and_do_not_depend_on_the_defense() -> None:
    runs = [simulation("asyncsgd"), simulation("secureafl")]
    for run in runs:
        for _ in range(30):
            run.step()
    assert runs[0].trace.arrivals_sha256() == runs[1].trace.arrivals_sha256()
    rng = np.random.default_rng(0)
    assert {int(index) // 5 for _ in range(20) for index in runs[0].data.draw(ClientId(2), rng)} == {2}


def test_a_malicious_client_sees_everything_and_what_it_sends_counts() -> None:
    attack = Recorder()
    run = simulation(attack=attack)
    reasons = [run.step().reason for _ in range(40)]
    assert reasons.count("not-finite") == len(attack.views) > 0
    view = attack.views[-1]
    assert view.client in view.malicious
    assert view.round == view.model.version
    np.testing.assert_array_equal(view.gradient, Mean().gradient(view.base.params, *view.batch))
    assert {int(value) for value in view.draw_batch().y} == {int(view.client)}
    assert view.benign_gradients is not None
    assert set(view.benign_gradients()) == {0, 2}
    assert set(view.updates) == {0, 1, 2, 3}


def test_a_client_that_leaves_its_name_is_a_new_one_with_its_old_data() -> None:
    attack, plain = Renaming(), simulation(attack=Recorder())
    run = simulation(attack=attack)
    for _ in range(40):
        plain.step()
        run.step()
    names = [view.client for view in attack.views]
    assert len(set(names)) == len(names) > 10  # no name is used twice
    assert len(run.machine.roster) == NUM_CLIENTS + len(names)
    assert names[-1] in attack.views[-1].malicious
    assert attack.views[-1].malicious & {0, 2} == set()
    assert set(attack.views[-1].updates) <= {0, 2}  # what left names sent is not kept
    assert run.trace.arrivals_sha256() == plain.trace.arrivals_sha256()  # the same clients and samples
    assert {int(value) for view in attack.views for value in view.draw_batch().y} == {1, 3}


def test_who_watches_sees_each_honest_update() -> None:
    attack = Renaming()
    run = simulation(attack=attack)
    for _ in range(40):
        run.step()
    clients = run.trace.columns()["client"].tolist()
    assert [client for client, _ in attack.watched] == [client for client in clients if client in {0, 2}]
    client, update = attack.watched[0]
    np.testing.assert_allclose(update, np.full(DIM, -float(client)), atol=1e-6)  # w - k at w = 0


def test_names_are_saved() -> None:
    run = simulation("secureafl", Renaming())
    for _ in range(15):
        run.step()
    restored = simulation("secureafl", Renaming())
    restored.load_state_dict(run.state_dict())
    for _ in range(15):
        run.step()
        restored.step()
    assert restored.machine.roster == run.machine.roster
    assert restored.trace.arrivals_sha256() == run.trace.arrivals_sha256()


def test_the_shadow_is_the_real_defense_or_a_copy_fed_on_demand() -> None:
    real = Recorder()
    run = simulation("secureafl", real)
    for _ in range(20):
        run.step()
    assert real.views[-1].shadow is run.machine.defense
    for needs_shadow in (True, False):
        attack = Recorder()
        run = simulation("asyncsgd", attack, needs_shadow)
        for _ in range(20):
            run.step()
        shadow = attack.views[-1].shadow
        assert isinstance(shadow, SecureAFL)
        assert (len(shadow.history) == 2) == needs_shadow  # the two honest ones; NaN leaves no trace


class Steep(Mean):
    """Keeps the models it is asked at. One coordinate is so large that the others are below half a step of int8."""

    def __init__(self) -> None:
        self.asked: list[Vector] = []

    def gradient(self, params: Vector, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Vector:
        self.asked.append(params)
        return np.array([100.0, 0.25, -0.125], np.float32)


def test_over_a_smaller_wire_models_arrive_rounded_and_what_updates_lose_comes_later() -> None:
    exact, run = simulation(), simulation(wire="int8")
    exact.task, task = Steep(), Steep()
    run.task = task
    for _ in range(400):
        exact.step()
        run.step()
    assert any((asked != 0.0).all() for asked in task.asked)
    for asked in task.asked:
        np.testing.assert_array_equal(asked, rounded(asked))
    gap = np.abs(run.machine.model.params - exact.machine.model.params)
    assert gap.max() <= 0.1 * NUM_CLIENTS * 100.0 / 127, "one rounding for each client, times the server's rate"
    assert gap.max() < 0.1 * np.abs(exact.machine.model.params).min()


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_goes_on_from_saved_state(wire: Wire) -> None:
    run = simulation("secureafl", Recorder(), wire=wire)
    for _ in range(15):
        run.step()
    restored = simulation("secureafl", Recorder(), wire=wire)
    restored.load_state_dict(run.state_dict())
    for _ in range(15):
        run.step()
        restored.step()
    np.testing.assert_array_equal(restored.machine.model.params, run.machine.model.params)
    assert restored.trace.arrivals_sha256() == run.trace.arrivals_sha256()
