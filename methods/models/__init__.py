"""The frozen target: loading, layers, rollback state, taps, and the split into pipeline stages."""

from methods.models.loading import load_target
from methods.models.state import State
from methods.models.target import Target

__all__ = ["State", "Target", "load_target"]
