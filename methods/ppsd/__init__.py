"""PPSD: an early-exit head after stage 1 drafts for the pipeline."""
