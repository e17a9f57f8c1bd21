"""Test doubles: targets and drafters small enough to know everything about."""
