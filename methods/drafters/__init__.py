"""What all trained drafters share: the decoder layer, its cache, the draft vocabulary, checkpoints."""
