"""Tools that read runs and configs from outside: plans, sweeps and reports. The library calls them by name alone."""
