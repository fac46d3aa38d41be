"""Attention: its layer, its masks, relative positions, and the implementations for each kind of device."""
