"""Decoding from one target: sampling, verification, rounds of draft and verify, replay."""
