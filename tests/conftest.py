"""Settings of the whole test session, made before JAX starts."""

import os

# Eight devices on any machine, for the tests of meshes; the others use the first. Small programs that run a few
# times cost more to optimize than to run.
_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
os.environ["JAX_PLATFORMS"] = "cpu"
