"""Logarithm, exponential, power and cosine are right, and their bits are fixed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from edl.numerics.portable_math import cos_of_turns, exp, log, power

RANDOM = np.random.default_rng(5)
FRACTIONS = (RANDOM.integers(0, 2**53, 100_000).astype(np.float64) + 0.5) * 2.0**-53
EDGES = np.array([2.0**-54, 2.0**-53, 1e-5, 0.125, 0.25, 0.375, 0.5, 0.7071067811865476, 0.75, 0.875, 1 - 2**-53, 1.0])
DIGEST = "8a47598b274554ad6573e163f21988cc8627d84c2bbb6202b4b1ab35594157c1"
EXPONENTIALS = "da9cede5fb3c5264419ab445cca38dccae1cdcfbea997fde6b9d650b6396e8f2"
EXPONENTS = RANDOM.uniform(-700, 700, 100_000)
BASES = np.exp(RANDOM.uniform(-40, 40, 100_000)).astype(np.float32)


def test_the_logarithm_is_numpys_to_the_last_bits():
    x = np.concatenate([FRACTIONS, EDGES])
    np.testing.assert_allclose(log(x), np.log(x), rtol=4e-16, atol=2e-16)
    assert log(np.array([1.0]))[0] == 0.0


def test_the_cosine_is_numpys_to_the_last_bits():
    turns = np.concatenate([FRACTIONS, EDGES, [0.0]])
    np.testing.assert_allclose(cos_of_turns(turns), np.cos(2 * np.pi * turns), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(cos_of_turns(np.array([0.0, 0.25, 0.5, 0.75, 1.0])), [1, 0, -1, 0, 1])


def test_the_exponential_is_numpys_to_the_last_bits():
    x = np.concatenate([EXPONENTS, FRACTIONS, [0.0, 700.0, -700.0]])
    np.testing.assert_allclose(exp(x), np.exp(x), rtol=5e-16)
    np.testing.assert_array_equal(exp(np.array([0.0, -0.0])), 1)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.3, 0.75, 1.0, 2.0])
def test_a_power_is_the_exact_one_rounded(exponent):
    expected = (BASES.astype(np.float64) ** exponent).astype(np.float32)
    np.testing.assert_allclose(power(BASES, exponent), expected, rtol=1.2e-7)
    assert (power(BASES, exponent) == expected).mean() > 0.9999


def test_powers_of_what_is_no_positive_finite_number():
    edges = np.array([0, np.inf, np.finfo(np.float32).max, 1e-45], np.float32)
    np.testing.assert_array_equal(power(edges, 0.0), 1)
    np.testing.assert_allclose(power(edges, 0.3), [0, 3.40282347e38**0.3, 3.40282347e38**0.3, 1.4e-45**0.3], rtol=1e-3)
    np.testing.assert_array_equal(power(edges, 9.0), [0, np.inf, np.inf, 0])


def test_their_bits_are_the_same_on_every_machine():
    """What was trained on one machine goes on with the same initial rows on another."""
    numbers = np.concatenate([log(FRACTIONS), cos_of_turns(FRACTIONS)])
    assert hashlib.sha256(numbers.astype("<f8").tobytes()).hexdigest() == DIGEST
    assert hashlib.sha256(exp(FRACTIONS).astype("<f8").tobytes()).hexdigest() == EXPONENTIALS
