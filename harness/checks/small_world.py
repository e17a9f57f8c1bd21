"""A real target, tokenizer and prompt files, small enough for whole runs in a second: nothing is faked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from harness.cli.arguments import BENCHMARKS
from methods.testing.tiny import tiny_model

LAYERS, CONTEXT = 4, 256
BOS, EOS = "<s>", "</s>"
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}(quiet){% endif %}"
)


def make_tokenizer(*, adds_bos: bool, template: str | None = TEMPLATE, has_bos: bool = True) -> Any:
    """A byte-level tokenizer without merges: every text is encodable, nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([BOS, EOS, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS if has_bos else None, eos_token=EOS
    )
    tokenizer.chat_template = template
    return tokenizer


def save_target(directory: Path, context: int = CONTEXT) -> Path:
    """A random Llama of four layers with a byte-level tokenizer, as transformers stores them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(adds_bos=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
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
