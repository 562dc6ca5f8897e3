import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _inside_a_flower_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower lets messages be made only within a run."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
