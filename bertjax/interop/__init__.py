"""Import and export of published weights."""
