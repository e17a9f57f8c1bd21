"""One trainer for all drafters: a frozen target pass per batch feeds every head being trained."""
