"""What is chosen by name: targets, devices, drafters, recipes of training."""
