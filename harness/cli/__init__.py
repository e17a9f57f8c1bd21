"""Command lines: arguments, options by groups, and the guard around what a command runs."""
