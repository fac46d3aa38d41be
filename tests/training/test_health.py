"""Spikes are counted and logged once; noise, trends and shifts are not spikes."""

import logging

import numpy as np
import pytest

from bertjax.training.health import Spikes


def counted(values, least=0.05, log_scale=False):
    spikes = Spikes("loss", least, log_scale)
    for step, value in enumerate(values, start=1):
        spikes.add(step, float(value))
    return spikes.take().get("train/loss_spikes", 0)


def noisy(count, level=6.0, deviation=0.1, seed=0):
    return np.random.default_rng(seed).normal(level, deviation, count)


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_spikes(seed):
    assert counted(noisy(5000, seed=seed)) == 0


def test_a_falling_loss_has_no_spikes():
    steps = np.arange(5000)
    assert counted(2 + 8 * np.exp(-steps / 500) + noisy(5000, 0.0, 0.05)) == 0


def test_each_spike_is_counted():
    values = noisy(1000)
    values[[100, 500, 501, 502, 900]] += 2
    assert counted(values) == 5


def test_the_first_values_are_no_spikes():
    values = noisy(200)
    values[[20, 63]] += 100
    assert counted(values) == 0
    values[64] += 100
    assert counted(values) == 1


def test_a_new_level_is_no_spike_after_a_while():
    values = np.concatenate([noisy(200), noisy(2000, level=9.0)])
    assert 40 <= counted(values) <= 64  # at most half of the window


def test_a_new_stage_has_a_level_of_its_own():
    values = np.concatenate([noisy(200), noisy(200, level=9.0)])
    spikes = Spikes("loss", 0.05)
    for step, value in enumerate(values):
        spikes.add(step, value, stage=step // 200)
    assert spikes.take() == {}


def test_an_excess_below_a_fraction_of_the_median_is_no_spike():
    values = noisy(200, deviation=1e-4)
    values[100] *= 1.04
    assert counted(values) == 0
    values[150] *= 1.06
    assert counted(values) == 1


def test_gradient_norms_of_a_healthy_fine_tuning_have_no_spikes():
    # When most rows are classified correctly, the norms of batches differ by more than a factor of ten.
    norms = np.exp(noisy(5000, -1.0, 1.2))
    assert counted(norms, least=1.0) > 10
    assert counted(norms, least=1.0, log_scale=True) == 0
    norms[3000] = 1e5
    assert counted(norms, least=1.0, log_scale=True) == 1


def test_a_norm_of_zero_is_no_error():
    assert counted(np.zeros(200), least=1.0, log_scale=True) == 0


def test_one_warning_for_all_spikes_since_the_last_call(caplog):
    spikes = Spikes("gradient_norm", 1.0, log_scale=True)
    for step in range(100):
        spikes.add(step, 1.0)
    spikes.add(100, 3.0)
    spikes.add(101, 4.0)
    with caplog.at_level(logging.WARNING):
        assert spikes.take() == {"train/gradient_norm_spikes": 2.0}
        assert spikes.take() == {}
    assert caplog.messages == ["2 spikes of gradient_norm; step 101 had 4; the median of the steps before is 1"]
