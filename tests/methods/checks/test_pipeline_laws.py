"""C9-C13: at T > 0 the decoded tokens follow the target's law exactly."""

import pytest
import torch
from check_worlds import PIPELINES, VOCAB, pipeline, table_target

from harness.checks import gates
from harness.checks.reported import largest_score, pipeline_laws
from methods.core import SamplingParams
from methods.decoding.sampling import Draws, probabilities
from methods.decoding.verification import DraftLaw
from methods.drafters.vocabulary import DraftVocabulary
from methods.testing.laws import chi_square
from methods.testing.scripted import ScriptedDrafter, ScriptedPipeline, random_laws
from methods.testing.table_target import LawTable, TableTarget

PLAIN = SamplingParams(temperature=1.0)
WARPED = SamplingParams(temperature=0.8, top_k=4, top_p=0.85)
SAMPLINGS = {"plain": PLAIN, "top-k": SamplingParams(1.0, top_k=2), "top-p": SamplingParams(0.8, top_p=0.7)}
CLOSE = 1e-6
"""The laws are float32."""
DRAWS = 1000
"""Blocks of three tokens per test of a sample, whose noise hides small errors: the exact laws carry the
proof, the samples show what an enumeration of three tokens cannot reach, the long run."""
RULES = [("sampled", 1), ("point-mass", 1), ("point-mass", 4)]
REDUCED = DraftVocabulary(VOCAB, [0, 2, 3])


def law_pipeline(target, rule, width, series=False, ids=None, sharpness=2.0, dtype=torch.float32):
    """A drafter with a fixed random law of every prefix, beside the stages or in series."""
    vocabulary = DraftVocabulary(target.vocab_size, ids)
    law_of = random_laws(vocabulary.size, seed=4, sharpness=sharpness, dtype=dtype)

    def drafter(prompt, sampling):
        return ScriptedDrafter(law_of, vocabulary, series=series)

    return ScriptedPipeline(target, [1] * target.num_layers, drafter, rule, width)


def small_target(n, vocab, tokens=3, dtype=torch.float32):
    """One layer a stage, few enough tokens to enumerate all that can happen."""
    return TableTarget(LawTable.random(vocab, period=tokens, seed=1), n, logits_dtype=dtype)


SHAPES = [(1, 3, 4), (2, 3, 3), (2, 2, 5), (3, 2, 4), (4, 2, 3)]
"""Stages, vocabulary, tokens: with the fill, an acceptance or a rejection behind it, and what follows."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("n", "vocab", "tokens"), SHAPES)
def test_exact_joint_law_of_drawn_drafts(n, vocab, tokens, sampling):
    target = small_target(n, vocab, tokens)
    for series in (False, True):
        method = law_pipeline(target, "sampled", 1, series)
        assert gates.law_distance(method, target, SAMPLINGS[sampling]) < CLOSE


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_exact_joint_law_of_point_mass_drafts(width, sampling):
    target = small_target(3, vocab=5)
    assert gates.law_distance(law_pipeline(target, "point-mass", width), target, SAMPLINGS[sampling]) < CLOSE


@pytest.mark.parametrize("sharpness", [0.0, 6.0], ids=["flat drafter", "peaked drafter"])
def test_exact_joint_law_with_a_draft_vocabulary_that_lacks_tokens(sharpness):
    target = small_target(2, vocab=4)
    for sampling in SAMPLINGS.values():
        method = law_pipeline(target, "sampled", 1, ids=[0, 3], sharpness=sharpness)
        assert gates.law_distance(method, target, sampling) < CLOSE


def test_exact_joint_law_of_half_precision_logits():
    target = small_target(2, vocab=3, dtype=torch.bfloat16)
    method = law_pipeline(target, "sampled", 1, dtype=torch.bfloat16)
    for sampling in SAMPLINGS.values():
        assert gates.law_distance(method, target, sampling) < CLOSE


@pytest.mark.parametrize("sampling", ["plain", "top-p"])
@pytest.mark.parametrize(("rule", "width"), [("sampled", 1), ("point-mass", 1), ("point-mass", 2)])
@pytest.mark.parametrize("label", PIPELINES)
def test_exact_joint_law_of_the_drafters_themselves(label, rule, width, sampling):
    """Untrained SPD and PPSD on tables: their features mean nothing, the law must hold."""
    target = small_target(2, vocab=2)
    method = pipeline(target, label, 2, proposal=rule, width=width)
    assert gates.law_distance(method, target, SAMPLINGS[sampling]) < CLOSE


@pytest.mark.parametrize("series", [False, True], ids=["beside", "series"])
@pytest.mark.parametrize("sampling", [PLAIN, WARPED], ids=["plain", "warped"])
def test_long_runs_follow_the_law(sampling, series):
    target = table_target()
    found = gates.law(law_pipeline(target, "sampled", 1, series), target, sampling, DRAWS)
    assert found.draws == DRAWS
    assert found.passed, found


@pytest.mark.parametrize("label", PIPELINES)
def test_long_runs_of_the_drafters_themselves_follow_the_law(label):
    target = table_target()
    found = gates.law(pipeline(target, label, 3), target, PLAIN, 400)
    assert found.passed, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [DraftVocabulary(VOCAB), REDUCED], ids=["full", "reduced"])
@pytest.mark.parametrize("sampling", [PLAIN, WARPED], ids=["plain", "top-k top-p"])
def test_the_reported_law_is_the_one_drawn_from(sampling, vocabulary, dtype):
    logits = torch.linspace(-1, 1, vocabulary.size).to(dtype)
    draws = Draws(7)
    laws = [DraftLaw.draw(logits, vocabulary, sampling, draws) for _ in range(4000)]
    reported = vocabulary.scatter(laws[0].probs)
    assert float(reported.sum()) == pytest.approx(1, abs=1e-6)
    assert torch.equal(laws[0].probs, probabilities(logits, sampling))
    counts = torch.bincount(torch.tensor([law.token for law in laws]), minlength=VOCAB)
    assert chi_square(counts, reported.double()) > 1e-4


def reported_laws(method, sampling, tokens=600):
    return pipeline_laws(method.lockstep([0, 1, 2], sampling), [0, 1, 2], tokens)


@pytest.mark.parametrize("sampling", [PLAIN, WARPED], ids=["plain", "top-k top-p"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reported_law_of_a_run_is_the_one_drawn_from(sampling, dtype):
    method = law_pipeline(table_target(), "sampled", 1, ids=[0, 2, 3], dtype=dtype)
    assert largest_score(reported_laws(method, sampling)) < 4


def test_point_mass_drafts_carry_no_law():
    assert not reported_laws(law_pipeline(table_target(), "point-mass", 1), PLAIN, 20)


@pytest.mark.parametrize("label", PIPELINES)
def test_a_tiny_temperature_is_greedy(label):
    target = table_target()
    for rule, width in RULES:
        method = pipeline(target, label, 3, proposal=rule, width=width)
        for seed in range(3):
            almost = method.decode([0, 1], SamplingParams(temperature=1e-6, seed=seed), 12).tokens
            assert almost == method.decode([0, 1], gates.GREEDY, 12).tokens


@pytest.mark.parametrize("label", PIPELINES)
@pytest.mark.parametrize(("rule", "width"), RULES)
def test_seeds_decide_the_output(label, rule, width):
    flat = table_target(sharpness=0.0)
    finding = gates.repeats(pipeline(flat, label, 2, proposal=rule, width=width), [0, 1], 6, seeds=6)
    assert finding.passed, finding.fault
    assert finding.cases == 6 + 6


WARPS = [SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_p=0.6), SamplingParams(0.7, 3, 0.7), PLAIN]


def truthful_pipeline(target: TableTarget, draft_logits: torch.Tensor) -> ScriptedPipeline:
    """A drafter whose logits are the target's own."""
    table, vocabulary = target.table, DraftVocabulary(VOCAB)
    drafter = ScriptedDrafter(lambda prefix: draft_logits[table.context([0, 1, 2, *prefix])], vocabulary)
    return ScriptedPipeline(target, [1, 1, 1], lambda prompt, sampling: drafter, "sampled")


@pytest.mark.parametrize("sampling", WARPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_are_warped_equally_so_nothing_is_rejected(sampling, dtype):
    target = TableTarget(LawTable.tied(VOCAB), 3, logits_dtype=dtype)
    result = truthful_pipeline(target, target.table.logits.to(dtype)).decode([0, 1, 2], sampling, 300)
    assert sum(step.accepted for step in result.steps) == 299
    assert len(result.steps) == 299 + 2


def test_ties_at_the_boundaries():
    logits = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0])
    assert probabilities(logits, SamplingParams(1.0, top_k=2)).nonzero().flatten().tolist() == [1, 2, 4]
    # Each 2.0 has 0.27: two are needed to pass 0.5, and of equal ones the last stay.
    assert probabilities(logits, SamplingParams(1.0, top_p=0.5)).nonzero().flatten().tolist() == [2, 4]
    half = torch.tensor([0.0, 0.0])
    assert probabilities(half, SamplingParams(1.0, top_p=0.5)).tolist() == [0.0, 1.0]
    assert probabilities(logits, gates.GREEDY).tolist() == [0, 1, 0, 0, 0]
