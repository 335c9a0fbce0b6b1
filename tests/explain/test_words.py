"""A hot function is not named as evidence if few stack samples contradict the measured time of the collate function."""

from __future__ import annotations

import pytest
from tests.report.sample import loader

from paceline.explain.model import HotFunction
from paceline.explain.words import hot


@pytest.mark.parametrize("count, collate, told", [(3, 0.56, False), (3, 0.0, True), (40, 0.56, True)])
def test_few_stack_samples_do_not_stand_beside_a_measured_time_that_they_contradict(count, collate, told):
    top = HotFunction(function="Data.__getitem__ (data.py:3)", share=1.0, count=count)
    texts = [one.text for one in hot(loader(hot=(top,), collate=collate, settings={}))]
    assert any("Data.__getitem__" in text for text in texts) is told
