"""The former name of `bertjax.tools.reporting`, for its commands."""
