"""The frozen target model: its shape, its stages, its state."""
