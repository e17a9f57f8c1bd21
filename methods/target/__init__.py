"""The frozen target: loading, layers, rollback state, taps, and the split into pipeline stages."""

from methods.target.loading import load_target
from methods.target.state import State
from methods.target.target import Target

__all__ = ["State", "Target", "load_target"]
