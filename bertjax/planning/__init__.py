"""Memory and time of a run on a TPU slice, estimated by compiling for it without the hardware."""
