"""A method outside the package: a smaller model drafts, the target verifies (arXiv 2211.17192)."""

from dataclasses import dataclass

from methods.decoding.rounds import DraftSession, RoundMethod
from methods.decoding.verification import Draft, DraftLaw
from methods.drafters.vocabulary import DraftVocabulary
from methods.registry import register
from methods.testing.tiny import tiny_target


@dataclass(frozen=True)
class DraftModelOptions:
    m: int = 3
    family: str = "llama"
    layers: int = 2


class DraftModelSession(DraftSession):
    def __init__(self, model, m, sampling, draws):
        self.model, self.m, self.sampling, self.draws = model, m, sampling, draws
        self.vocabulary = DraftVocabulary(model.vocab_size)
        self.state = model.new_state()
        self.unseen = []  # true tokens the model has not run yet

    def observe(self, tokens, taps):
        self.unseen += tokens

    def propose(self, budget):
        if budget < 1:
            return Draft()
        hidden = self.model.forward(self.unseen, self.state).hidden
        self.unseen = []
        laws = []
        mark = self.state.mark()
        while True:
            logits = self.model.logits(hidden)[0, -1]
            laws.append(DraftLaw.draw(logits, self.vocabulary, self.sampling, self.draws))
            if len(laws) == min(self.m, budget):
                break
            hidden = self.model.forward([laws[-1].token], self.state, record=True).hidden
        self.state.rollback(mark)
        layers = len(laws) * self.model.num_layers
        return Draft.chain([law.token for law in laws], laws, layers)


@register("draft-model")
class DraftModel(RoundMethod):
    Options = DraftModelOptions

    def __init__(self, target, options):
        super().__init__(target, options)
        self.model = tiny_target(options.family, options.layers, target.vocab_size)

    def session(self, sampling, draws):
        return DraftModelSession(self.model, self.options.m, sampling, draws)

    def describe(self):
        return {"proposal": "sampled"}
