"""What is computed from records."""
