"""What of a chat answer is meant for its reader."""

from __future__ import annotations


def final_part(answer: str) -> str:
    """``answer`` without the chain of thought before it, unless nothing follows that."""
    _, end, rest = answer.rpartition("</think>")
    return rest if end and rest.strip() else answer
