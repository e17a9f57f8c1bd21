"""What a run leaves on disk, and what it says of where it came from."""
