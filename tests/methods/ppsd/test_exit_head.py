import pytest
import torch
from conftest import tiny_shape

from methods.drafters.rotary import rotary_from_theta
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.ppsd import checkpoint

SHAPE = tiny_shape(num_layers=6)
IDS = [1, 2, 5, 9]
ROTARY = rotary_from_theta(1e4, 8)
TARGET_HEAD = torch.randn(20, 16, generator=torch.Generator().manual_seed(1))
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
HEADS = ("layer", "mlp", "linear")


def make(head_class="layer", layout="A", window=None):
    norm = torch.rand(16, generator=torch.Generator().manual_seed(2))
    return checkpoint.untrained(
        SHAPE,
        2,
        DraftVocabulary(20, IDS),
        TARGET_HEAD,
        ROTARY,
        head_class=head_class,
        final_norm_weight=norm,
        layout=layout,
        window=window,
    )


@pytest.mark.parametrize("head_class", HEADS)
@pytest.mark.parametrize("layout", ["A", "B"])
@pytest.mark.parametrize("window", [None, 4])
def test_incremental_equals_stateless_after_rollbacks_too(head_class, layout, window):
    head = make(head_class, layout, window)
    features = torch.randn(30, 16, generator=torch.Generator().manual_seed(3))
    session = head.session()
    with torch.no_grad():
        for begin, end, keep in [(0, 7, 7), (7, 8, 8), (8, 9, 6), (6, 7, 7), (7, 12, 1), (1, 2, 2)]:
            got = session.step(features[begin:end], last=end - begin)
            torch.testing.assert_close(got, head.stateless(features[:end])[begin:], **CLOSE)
            session.rollback(keep)
            features[keep:] = torch.randn(30 - keep, 16)
            assert session.length == keep


@pytest.mark.parametrize("head_class", HEADS)
def test_tree_rows_equal_a_chain_along_their_root_path_and_are_not_kept(head_class):
    head = make(head_class)
    prefix, nodes = torch.randn(5, 16), torch.randn(4, 16)
    parents = [-1, 0, 0, 1]
    mask = torch.eye(4, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    session = head.session()
    with torch.no_grad():
        session.step(prefix)
        got = session.step(None, nodes, positions=torch.tensor([5, 6, 6, 7]), mask=mask, last=2)
        for row, node in zip(got, (2, 3), strict=True):
            path = torch.cat((prefix, nodes[mask[node]]))
            torch.testing.assert_close(row[None], head.stateless(path, last=1), **CLOSE)
    assert session.length == 5


@pytest.mark.parametrize(("head_class", "tensors"), [("layer", 13), ("mlp", 6), ("linear", 2)])
def test_gradients_reach_every_parameter(head_class, tensors):
    head = make(head_class)
    assert len(head.state_dict()) == tensors
    head.stateless(torch.randn(2, 6, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())
    assert torch.equal(head.lm_head.weight, TARGET_HEAD[IDS])


@pytest.mark.parametrize("head_class", HEADS)
def test_checkpoint_round_trip(tmp_path, head_class):
    head = make(head_class, window=7)
    digest = checkpoint.save(tmp_path, head, SHAPE, [2, 2, 2], {"epochs": 2})
    loaded = checkpoint.load(tmp_path, SHAPE, ROTARY, n=3, stage_layers=[2, 2, 2], head_class=head_class)
    features = torch.randn(9, 16)
    torch.testing.assert_close(loaded.module.stateless(features), head.stateless(features))
    assert (loaded.sha256, loaded.config.training) == (digest, {"epochs": 2})
    assert loaded.module.config == head.config


def test_unusable_checkpoints_are_refused(tmp_path):
    checkpoint.save(tmp_path, make(), SHAPE, [2, 2, 2], {})
    with pytest.raises(UsageError, match="n = 3, but n = 2"):
        checkpoint.load(tmp_path, SHAPE, ROTARY, n=2)
    with pytest.raises(UsageError, match="head class = layer, but head class = mlp"):
        checkpoint.load(tmp_path, SHAPE, ROTARY, head_class="mlp")
    with pytest.raises(UsageError, match="is a file"):
        checkpoint.load(tmp_path / "draft.json", SHAPE, ROTARY)
    with pytest.raises(UsageError, match="unknown head class 'deep'; allowed: layer, mlp, linear"):
        make("deep")
    with pytest.raises(ValueError, match="stage 1 has 3 layers, the head exits at 2"):
        checkpoint.save(tmp_path, make(), SHAPE, [3, 3], {})
