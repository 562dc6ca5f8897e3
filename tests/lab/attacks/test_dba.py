import numpy as np

from secureafl import ClientId
from secureafl.lab.attacks import DBA, DBASettings, Scaling, ScalingSettings
from secureafl.testing.attack_views import trigger, view


def test_quadrants_are_disjoint_and_their_union_is_the_trigger() -> None:
    whole, blank = trigger(), np.full((1, 1, 6, 6), 2, np.float32)  # 2 is no trigger value
    parts = [whole.quadrant(j).apply(blank) for j in range(4)]
    written = np.stack([part != blank for part in parts])
    assert written.sum(axis=0).max() == 1
    assert [int(w.sum()) for w in written] == [4, 4, 4, 4]
    union = blank.copy()
    for part, where in zip(parts, written, strict=True):
        union[where] = part[where]
    np.testing.assert_array_equal(union, whole.apply(blank))


def test_rank_among_the_malicious_decides_the_part() -> None:
    liars = frozenset(map(ClientId, (2, 3, 5, 7, 8)))
    for rank, client in enumerate(sorted(liars)):
        seen = view(client=client, malicious=liars)
        part = view(client=client, malicious=liars, trigger=seen.trigger.quadrant(rank % 4))
        expected = Scaling(ScalingSettings(scale=2)).update(part)
        np.testing.assert_array_equal(DBA(DBASettings(scale=2)).update(seen), expected)
