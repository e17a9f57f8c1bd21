"""Data and command line of training: conversations, masks, self-distillation, recipes, runs."""
