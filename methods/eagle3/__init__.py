"""EAGLE-3: a one-layer head that drafts from three target features and its own output."""
