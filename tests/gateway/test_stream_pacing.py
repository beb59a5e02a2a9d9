"""How long the tokens of a stream gather before they are sent."""

import pytest

from ajet.gateway.stream_pacing import StreamPacing


def test_a_loop_that_is_late_lets_tokens_gather_longer():
    pacing = StreamPacing()
    pacing.clients = 100
    calm = pacing.flush_interval
    for _ in range(1000):
        pacing.add_lateness(0.1)
    assert pacing.flush_interval == pytest.approx(calm + 0.6, rel=0.01), "several times as long as it is late"
    for _ in range(1000):
        pacing.add_lateness(0.0)
    assert pacing.flush_interval == pytest.approx(calm, rel=0.01) and calm > 0
    for _ in range(1000):
        pacing.add_lateness(600.0)
    assert pacing.flush_interval < calm + 1.1, (
        "a process that was stopped and goes on: no stream would have been heard for minutes"
    )
    pacing.clients = 1
    pacing.add_lateness(0.5)
    assert not pacing.flush_interval, "who is alone is sent each token as it comes"
