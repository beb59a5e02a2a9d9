"""Which gaps a distribution speaks of, and which are one token's own."""

from __future__ import annotations

import numpy as np

from ajet_proof.tokens.proof_gaps import Noise, measure_spread


def test_one_token_of_few_is_no_distribution() -> None:
    chance = np.random.default_rng(0)
    noise = Noise(np.sort(np.abs(chance.normal(0, 0.03, 256))))
    few, many = chance.normal(0, 0.03, 30), chance.normal(0, 0.03, 300)
    few[3] = 0.8
    many[3:9] = 0.8
    few_found, many_found = measure_spread(few, noise, 5e-3), measure_spread(many, noise, 5e-3)
    assert few_found is not None and few_found.problem is None
    assert many_found is not None and "99%" in str(many_found.problem)
    few[3:8] = 0.8
    found = measure_spread(few, noise, 5e-3)
    assert found is not None and found.problem is not None, "five of thirty are one"
