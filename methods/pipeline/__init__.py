"""Decoding with the target cut into stages that work on several tokens at once."""
