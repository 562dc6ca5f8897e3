"""Private training through Opacus: what is sent, and the account of what it gives away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from secureafl.errors import PrivacyError
from secureafl.privacy import DELTA, EPSILON, PrivateTraining, epsilon_of, noise_for, read_report

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Opacus's, of PyTorch

NUM_EXAMPLES, BATCH_SIZE = 60, 20


def training(ledger: Path, **changes: float) -> PrivateTraining:
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 0.5, "delta": 1e-4, **changes}
    return PrivateTraining(ledger=ledger, **settings)


def train(private: PrivateTraining, model: nn.Module, lr: float = 0.1) -> None:
    """One pass over examples that all say the same."""
    data = TensorDataset(torch.ones(NUM_EXAMPLES, 3), torch.full((NUM_EXAMPLES, 1), 100.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    network, private_optimizer, loader = private.prepare(model, optimizer, DataLoader(data, batch_size=BATCH_SIZE))
    for x, y in loader:
        private_optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()  # type: ignore[no-untyped-call]
        private_optimizer.step()


def test_the_account_goes_on_where_the_last_process_left_it(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        private = training(tmp_path / "ledger.json")
        train(private, nn.Linear(3, 1))
        found.append(private.report())
    steps = NUM_EXAMPLES // BATCH_SIZE
    for times, report in enumerate(found, 1):
        assert report[EPSILON] == pytest.approx(epsilon_of([(1.0, 1 / steps, times * steps)], 1e-4))
        assert report[DELTA] == 1e-4
    assert found[0][EPSILON] < found[1][EPSILON] < found[2][EPSILON]


def test_an_example_moves_the_model_no_further_than_its_gradient_may_be_long(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    before = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
    train(training(tmp_path / "ledger.json", noise_multiplier=1e-6), model, lr=1.0)
    after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    steps = NUM_EXAMPLES // BATCH_SIZE  # about: batches are drawn by lot
    assert 0.5 * steps * 0.5 < float((after - before).norm()) < 0.5 * steps * 2.0  # unclipped it would be hundreds


def test_noise_is_what_the_multiplier_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3000, 1, bias=False)
    before = model.weight.detach().clone()
    private = training(tmp_path / "ledger.json", noise_multiplier=2.0, max_grad_norm=0.5)
    data = DataLoader(TensorDataset(torch.zeros(40, 3000), torch.zeros(40, 1)), batch_size=40)
    network, optimizer, loader = private.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), data)
    for x, y in loader:  # the whole of it, once; gradients are 0, so what moves the model is the noise
        nn.functional.mse_loss(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float((model.weight - before).std()) == pytest.approx(2.0 * 0.5 / 40, rel=0.1)


def test_a_training_beyond_the_budget_is_refused_before_it_begins(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    once = training(ledger)
    train(once, nn.Linear(3, 1))
    spent = once.report()[EPSILON]
    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()
    with pytest.raises(PrivacyError, match=r"would give away epsilon = .* and max_epsilon is"):
        train(training(ledger, max_epsilon=1.01 * spent), model)
    assert torch.equal(model.weight, before)
    train(training(ledger, max_epsilon=10.0 * spent), model)


def test_a_ledger_that_cannot_be_read_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text('{"trainings": [[1.0, 0.1]]}')
    with pytest.raises(PrivacyError, match="is no account of private trainings: restore it"):
        training(tmp_path / "ledger.json")


def test_noise_for_so_many_steps_gives_away_no_more() -> None:
    noise = noise_for(epsilon=4.0, delta=1e-5, sample_rate=0.1, num_steps=100)
    assert 3.8 < epsilon_of([(noise, 0.1, 100)], 1e-5) <= 4.0
    assert epsilon_of([], 1e-5) == 0.0


@pytest.mark.parametrize("changes", [{"noise_multiplier": 0.0}, {"max_grad_norm": -1.0}, {"delta": 1.0}])
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="must be above 0"):
        training(tmp_path / "ledger.json", **changes)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {EPSILON: 1.0},
        {EPSILON: "1.0", DELTA: 1e-5},
        {EPSILON: float("nan"), DELTA: 1e-5},
        {EPSILON: -1.0, DELTA: 1e-5},
        {EPSILON: [1.0], DELTA: 1e-5},
        {EPSILON: 10**400, DELTA: 1e-5},
    ],
)
def test_a_report_that_makes_no_sense_is_none(sent: dict[str, object]) -> None:
    assert read_report(sent) == {}


def test_a_report_is_read_as_it_was_sent(tmp_path: Path) -> None:
    private = training(tmp_path / "ledger.json")
    train(private, nn.Linear(3, 1))
    report = private.report()
    assert read_report({**report, "loss": 0.3}) == {"epsilon": report[EPSILON], "delta": 1e-4}
    assert json.loads((tmp_path / "ledger.json").read_text())["trainings"]
