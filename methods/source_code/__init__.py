"""Which sources a method is, and what of them is loaded."""
