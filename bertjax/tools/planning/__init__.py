"""Memory and time of a run on TPUs or GPUs, estimated by compiling for them without the hardware."""
