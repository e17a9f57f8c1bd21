"""Speculative Pipeline Decoding: aggregation of stage features and the pipeline draft module."""
