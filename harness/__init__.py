"""Benchmarks, runs, records and metrics around the decoding methods."""

from spd_bench import require

require("methods")
