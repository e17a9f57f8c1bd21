"""A run: what is planned, decoded, judged, shared among processes and replayed."""
