"""A pipeline's time on devices of its own: projected, emulated, timed."""
