"""Metrics as plain functions from predictions and references to named numbers, without JAX."""
