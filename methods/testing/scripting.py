"""A script in the place of a method's own drafter, so that acceptances can be forced.

Everything else stays the method's: its verification, its states, its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from methods.core import SamplingParams
from methods.decoding.rounds import RoundMethod
from methods.decoding.sampling import Draws
from methods.drafters.vocabulary import DraftVocabulary
from methods.pipeline.method import PipelineMethod
from methods.testing.scripted import LawOf, Right, ScriptedDrafter, knows_output
from methods.testing.scripted_rounds import Propose, ScriptedSession, knowing_chain, knowing_tree

Make = Callable[[SamplingParams, Draws], Propose]


def script_rounds(method: RoundMethod, make: Make) -> None:
    """From now on ``method`` drafts what ``make`` says for each decode call."""
    method.session = lambda sampling, draws: ScriptedSession(make(sampling, draws))  # type: ignore[method-assign]


def script_pipeline(method: PipelineMethod, law_of: LawOf, vocabulary: DraftVocabulary) -> None:
    """From now on ``method`` drafts by ``law_of``, at the same place of the schedule as before."""
    own = method.drafter()
    drafter = ScriptedDrafter(law_of, vocabulary, own.series, own.layers)
    method.drafter = lambda: drafter  # type: ignore[method-assign]


def script_output(method: RoundMethod | PipelineMethod, output: Sequence[int], right: Right, m: int) -> None:
    """From now on ``method`` drafts the tokens of ``output`` where ``right``, else others; in rounds
    ``m`` deep, with its own width if it has one."""
    vocab = method.target.vocab_size
    if isinstance(method, PipelineMethod):
        script_pipeline(method, knows_output(output, vocab, right), DraftVocabulary(vocab))
        return
    width = getattr(method.options, "width", 1)
    if width == 1:
        propose = knowing_chain(output, vocab, m, right)
    else:
        propose = knowing_tree(output, vocab, m, width, right)
    script_rounds(method, lambda sampling, draws: propose)
