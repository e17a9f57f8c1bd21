"""Benchmarks, runs, records and metrics around the decoding methods."""
