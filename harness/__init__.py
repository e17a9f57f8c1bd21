"""Benchmarks, runs, records, metrics and checks around the decoding methods."""
