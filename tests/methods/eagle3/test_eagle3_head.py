import dataclasses

import pytest
import torch
from conftest import tiny_shape

from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint
from methods.eagle3.head import Eagle3Head, default_taps
from methods.eagle3.session import Eagle3Session
from methods.errors import UsageError

SHAPE = tiny_shape(heads=4, kv_heads=2, head_dim=4, vocab=30, rotary_dim=4, model_type="qwen3")
IDS = [1, 2, 5, 9, 29]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
EMBEDDING = torch.randn(30, 16, generator=torch.Generator().manual_seed(1))
VARIANTS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"fc_bias": True, "own_embedding": True},
    {"window": 5},
]


def embed(ids):
    return EMBEDDING[ids]


def make(**variant) -> Eagle3Head:
    plain = checkpoint.untrained(SHAPE, DraftVocabulary(30, IDS), embed)
    torch.manual_seed(4)
    config = dataclasses.replace(plain.config, **variant)
    head = Eagle3Head(config, plain.vocabulary, embed, plain.rotary)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return head


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def textbook_slot(head: Eagle3Head, features, ids):
    """Published steps 1-6, spelt out for plain heads: outputs of all slots and their logits."""
    w = head.state_dict()
    feature = features @ w["fc.weight"].T
    both = torch.cat(
        (
            rms(EMBEDDING[ids], w["midlayer.input_layernorm.weight"]),
            rms(feature, w["midlayer.hidden_norm.weight"]),
        ),
        -1,
    )
    count = len(ids)
    query, key, value = (
        (both @ w[f"midlayer.self_attn.{name}_proj.weight"].T).view(count, -1, 4).transpose(0, 1)
        for name in "qkv"
    )
    cos, sin = head.rotary(torch.arange(count))

    def turn(x):
        return x * cos + torch.cat((-x[..., 2:], x[..., :2]), -1) * sin

    key, value = turn(key).repeat_interleave(2, 0), value.repeat_interleave(2, 0)
    scores = (turn(query) @ key.transpose(1, 2)) / 2
    scores = scores.masked_fill(~torch.ones(count, count, dtype=torch.bool).tril(), -torch.inf)
    mixed = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
    hidden = feature + mixed @ w["midlayer.self_attn.o_proj.weight"].T
    x = rms(hidden, w["midlayer.post_attention_layernorm.weight"])
    gate, up = x @ w["midlayer.mlp.gate_proj.weight"].T, x @ w["midlayer.mlp.up_proj.weight"].T
    hidden = hidden + (torch.nn.functional.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T
    return hidden, rms(hidden, w["norm.weight"]) @ w["lm_head.weight"].T


def test_the_plain_head_equals_the_published_formula():
    head = make()
    features, ids = torch.randn(9, 48), torch.randint(30, (9,))
    hidden, logits = textbook_slot(head, features, ids)
    with torch.no_grad():
        out, _ = head.slots(head.fuse(features)[None], ids[None], torch.arange(9))
        torch.testing.assert_close(out[0], hidden, **CLOSE)
        torch.testing.assert_close(head.logits(out[0]), logits, **CLOSE)


def chain_oracle(head, features, ids, drafted):
    """Outputs of stable and drafted slots in one growing pass without any cache."""
    stable = len(ids)
    inputs = head.fuse(features)
    outputs = None
    for step in range(len(drafted) + 1):
        tokens = torch.cat((ids, torch.tensor(drafted[:step], dtype=torch.long)))
        positions = torch.arange(stable + step)
        mask = torch.ones(stable + step, stable + step, dtype=torch.bool).tril()
        if head.config.window:
            mask &= positions[:, None] - positions < head.config.window
        outputs, _ = head.slots(inputs[None], tokens[None], positions, mask)
        # The next slot's feature is this pass's last output.
        inputs = torch.cat((inputs, outputs[0, -1:]))
    return outputs[0, -1:], head.logits(outputs[0, -1:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_chain_and_tree_rollouts_equal_the_pass_without_a_cache(variant):
    head = make(**variant)
    features, ids = torch.randn(20, 48), torch.randint(30, (20,))
    session = Eagle3Session(head)
    with torch.no_grad():
        session.extend(features[:6], ids[:6])
        for begin, end in [(6, 9), (9, 10)]:
            root, logits = session.extend(features[begin:end], ids[begin:end])
            torch.testing.assert_close(logits, chain_oracle(head, features[:end], ids[:end], [])[1], **CLOSE)
            first, _ = session.grow([-1, -1], root.expand(2, -1), torch.tensor([3, 7]))
            second, _ = session.grow([1, 0, 1], first[[1, 0, 1]], torch.tensor([11, 12, 13]))
            third, got = session.grow([2, 4], second[[0, 2]], torch.tensor([21, 22]))
            for row, path in enumerate([[7, 11, 21], [7, 13, 22]]):
                out, expected = chain_oracle(head, features[:end], ids[:end], path)
                torch.testing.assert_close(third[row : row + 1], out, **CLOSE)
                torch.testing.assert_close(got[row : row + 1], expected, **CLOSE)
        session.rollback(4)
        _, logits = session.extend(features[10:12], ids[10:12])
        kept = [*range(4), 10, 11]
        torch.testing.assert_close(logits, chain_oracle(head, features[kept], ids[kept], [])[1], **CLOSE)
    assert session.length == 6


def test_gradients_reach_every_parameter():
    head = make(fc_norm=True, norm_before_fc=True)
    features, ids = torch.randn(2, 5, 48), torch.randint(30, (2, 5))
    out, past = head.slots(head.fuse(features), ids, torch.arange(5))
    again, _ = head.slots(out, ids, torch.arange(1, 6), torch.ones(5, 10, dtype=torch.bool), past)
    head.logits(again).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_default_taps():
    assert default_taps(32) == (2, 16, 29)
    assert default_taps(36) == (2, 18, 33)
    for layers in range(1, 9):
        assert all(0 <= tap < layers for tap in default_taps(layers))


def test_round_trip_in_our_format(tmp_path):
    head = make(fc_norm=True, norm_output=True, window=5)
    digest = checkpoint.save(tmp_path, head, SHAPE, {"steps": 3})
    loaded = checkpoint.load(tmp_path, SHAPE, embed)
    assert (loaded.sha256, loaded.module.config) == (digest, head.config)
    for name, tensor in head.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[name], tensor)
    with pytest.raises(UsageError, match="hidden size 16"):
        checkpoint.load(tmp_path, dataclasses.replace(SHAPE, hidden=32), embed)
    for override in ({"taps": [4, 0, 0]}, {"draft_rope_theta": 7.0}):
        with pytest.raises(UsageError, match="belong to a published head, this one is trained"):
            checkpoint.load(tmp_path, SHAPE, embed, **override)
