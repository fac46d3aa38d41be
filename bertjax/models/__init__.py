"""Flax Linen modules: pure functions of parameters and arrays, with no data, files or flags."""
