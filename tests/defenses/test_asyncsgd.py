from tests.support import model, update

from secureafl.defenses import AsyncSGD


def test_every_update_is_the_step() -> None:
    verdict = AsyncSGD(2).step(update(0, model(3, [0, 0]), [1, -2]), model(5, [1, 1]))
    assert verdict.accepted
    assert verdict.direction is not None
    assert verdict.direction.tolist() == [1, -2]
    assert verdict.evidence["staleness"] == 2
