"""A real target and real prompt files, small enough for whole runs in a second: nothing is faked."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from test_chat import make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from harness.cli import BENCHMARKS
from methods.target.tiny import tiny_model

LAYERS, CONTEXT = 4, 256


def save_target(directory: Path) -> Path:
    """A random Llama of four layers with a byte-level tokenizer, as transformers stores them."""
    tokenizer = make_tokenizer(adds_bos=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        eos_token_id=None,
        bos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_family(directory: Path, family: str) -> Path:
    """A tiny target of ``family`` with four layers and the same tokenizer."""
    tokenizer = make_tokenizer(adds_bos=True)
    tiny_model(family, LAYERS, len(tokenizer)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_prompts(directory: Path, *texts: str) -> Path:
    """``texts`` as first turns of every benchmark, in FastChat's format."""
    for name in BENCHMARKS:
        rows = [
            {"question_id": f"q{number}", "category": "any", "turns": [text, "and then?"]}
            for number, text in enumerate(texts)
        ]
        (directory / name).mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / name / "question.jsonl").write_text(lines)
    return directory
