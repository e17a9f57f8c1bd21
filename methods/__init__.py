"""Decoding methods: from a prompt to tokens, each one lossless against its target."""
