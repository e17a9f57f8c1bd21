"""A part of a target, loaded from files, computes what the whole target computes."""

import dataclasses

import pytest
import torch
from conftest import tiny

from methods.errors import UsageError
from methods.models.files import weights_sha256
from methods.models.parts import DirectorySource, Part
from methods.models.target import Target
from methods.testing.tiny import FAMILIES

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory) -> tuple[Target, DirectorySource]:
    whole = tiny(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    whole.hf.save_pretrained(directory)
    hashes = {"sha256": weights_sha256(directory), "tokenizer_sha256": ""}
    return whole, DirectorySource(str(directory), torch.float32, False, hashes)


def test_a_part_computes_what_the_whole_computes(saved):
    whole, source = saved
    middle = source.load(Part(2, 5), CPU).stage(2, 5)
    hidden = torch.randn(1, 6, whole.hidden_size, generator=torch.Generator().manual_seed(0))
    reference = whole.stage(2, 5)
    expected, _ = reference.forward(hidden, reference.new_state())
    assert torch.equal(middle.forward(hidden, middle.new_state())[0], expected)
    first, last = source.load(Part(embedding=True), CPU), source.load(Part(head=True), CPU)
    assert torch.equal(first.embed([3, 5]), whole.embed([3, 5]))
    assert torch.equal(last.logits(hidden), whole.logits(hidden))


def test_only_the_part_takes_memory(saved):
    whole, source = saved
    part = source.load(Part(2, 5, head=True), CPU)
    loaded = {name for name, value in part.hf.named_parameters() if not value.is_meta}
    every = {name for name, _ in whole.hf.named_parameters()}
    middle = {
        name for name in every if name.startswith(("model.layers.2", "model.layers.3", "model.layers.4"))
    }
    assert loaded == middle | {"model.norm.weight", "lm_head.weight"}


def test_a_part_has_the_identity_of_the_whole(saved):
    _, source = saved
    part = source.load(Part(0, 1), CPU)
    assert part.shape.sha256 == source.hashes["sha256"]
    assert (part.device, part.dtype) == (CPU, torch.float32)


def test_other_weights_are_refused(saved):
    _, source = saved
    other = dataclasses.replace(source, hashes={"sha256": "0" * 64, "tokenizer_sha256": ""})
    with pytest.raises(UsageError, match=r"has weights .* here; the run's are 000000000000"):
        other.load(Part(0, 1), CPU)


def test_tied_embeddings_serve_as_head(tmp_path):
    model = tiny("llama").hf
    config = type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": True})
    tied = type(model)(config)
    tied.save_pretrained(tmp_path)
    hashes = {"sha256": weights_sha256(tmp_path), "tokenizer_sha256": ""}
    part = DirectorySource(str(tmp_path), torch.float32, False, hashes).load(Part(head=True), CPU)
    hidden = torch.ones(1, 1, part.hidden_size)
    assert torch.allclose(part.logits(hidden), Target(tied).logits(hidden), atol=1e-6)
