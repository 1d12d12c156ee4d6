"""What the images share."""
from itertools import pairwise

import pytest

from demo_sdtps.reports.figures import spread


@pytest.mark.parametrize("total, count", [(1, 1), (8, 8), (9, 8), (72, 4), (480, 8), (3, 3)])
def test_places_are_spread(total, count):
    places = spread(total, count)
    assert len(set(places)) == count and places == sorted(places)
    assert places[0] >= 0 and places[-1] < total
    steps = [after - before for before, after in pairwise(places)]
    assert not steps or max(steps) - min(steps) <= 1
    assert abs(places[0] - (total - 1 - places[-1])) <= 1  # as far from both ends


def test_no_more_places_than_there_are():
    assert spread(3, 8) == [0, 1, 2]
