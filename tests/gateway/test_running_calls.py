"""How long the tokens of a stream gather before they are sent."""

import pytest

from ajet.gateway.running_calls import Load


def test_a_loop_that_is_late_lets_tokens_gather_longer():
    load = Load(1000)
    load.clients = 100
    calm = load.breath
    for _ in range(1000):
        load.gathered(0.1)
    assert load.breath == pytest.approx(calm + 0.6, rel=0.01), "several times as long as it is late"
    for _ in range(1000):
        load.gathered(0.0)
    assert load.breath == pytest.approx(calm, rel=0.01) and calm > 0
    for _ in range(1000):
        load.gathered(600.0)
    assert load.breath < calm + 1.1, (
        "a process that was stopped and goes on: no stream would have been heard for minutes"
    )
    load.clients = 1
    load.gathered(0.5)
    assert not load.breath, "who is alone is sent each token as it comes"
