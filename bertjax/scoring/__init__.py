"""Predictions and references in, named numbers out: plain functions, without JAX."""
