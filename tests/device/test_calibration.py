"""The simulator's constants against published speeds; see bench/calibration.py for the table."""

import pytest

from bench.support.steps import forward_seconds, unmanaged
from minidl.lab.training_step import SEPARATE


@pytest.mark.parametrize(("name", "published"), [("resnet50", 219), ("resnet152", 91.8), ("vgg16", 154)])
def test_unmanaged_training_on_the_p100_is_within_10_percent_of_what_was_published(name, published):
    assert unmanaged(name, 64, switches=SEPARATE).images_per_second == pytest.approx(published, rel=0.10)


def test_replaying_every_forward_call_of_resnet50_once_costs_25_percent_within_3():
    forward, total = forward_seconds("resnet50", 64)
    assert 0.22 <= forward / (forward + total) <= 0.28
