import threading
import time

from secureafl.engines.schedule import Schedule


def collect(num_workers: int, delays: dict[str, float], expected: int) -> list[str]:
    served: list[str] = []
    died: list[BaseException] = []
    done = threading.Event()

    def serve(item: str) -> None:
        served.append(item)
        if item.startswith("bad"):
            raise ValueError(item)
        if len(served) == expected:
            done.set()

    def on_error(item: str, error: Exception) -> None:
        served.append(f"error {error}")
        if len(served) == expected:
            done.set()

    schedule: Schedule[str] = Schedule(serve, on_error, died.append, num_workers=num_workers, clock=time.monotonic)
    for item, delay in delays.items():
        schedule.put(item, delay)
    assert done.wait(5)
    schedule.close(timeout=5)
    assert died == []
    return served


def test_items_come_out_when_due() -> None:
    assert collect(1, {"late": 0.15, "now": 0.0, "soon": 0.05}, expected=3) == ["now", "soon", "late"]


def test_items_due_together_are_served_in_order() -> None:
    names = {f"{number:02}": 0.0 for number in range(30)}
    assert collect(1, names, expected=30) == list(names)


def test_an_error_is_reported_and_the_worker_goes_on() -> None:
    assert collect(1, {"bad": 0.0, "good": 0.02}, expected=3) == ["bad", "error bad", "good"]


def test_closing_serves_nothing_more() -> None:
    served: list[str] = []
    schedule: Schedule[str] = Schedule(
        served.append, lambda *_: None, lambda _: None, num_workers=2, clock=time.monotonic
    )
    schedule.put("never", 60.0)
    began = time.monotonic()
    schedule.close(timeout=5)
    assert time.monotonic() - began < 2
    assert served == []


def test_a_worker_that_dies_says_so() -> None:
    died: list[BaseException] = []
    told = threading.Event()

    def on_death(error: BaseException) -> None:
        died.append(error)
        told.set()

    def on_error(item: str, error: Exception) -> None:
        raise OSError("and the handling failed too") from error

    def serve(item: str) -> None:
        raise ValueError(item)

    schedule: Schedule[str] = Schedule(serve, on_error, on_death, num_workers=1, clock=time.monotonic)
    schedule.put("bad")
    assert told.wait(5)
    schedule.close(timeout=5)
    assert [str(error) for error in died] == ["and the handling failed too"]
