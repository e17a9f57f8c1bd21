"""Heads as typed on the command line: ``spd:n=8,layers=3``, ``eagle3``, ``ppsd:n=8``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import training as eagle3
from methods.errors import UsageError
from methods.models.partition import split_layers
from methods.models.target import Target
from methods.ppsd import training as ppsd
from methods.spd import training as spd
from methods.training.task import HeadTask

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "spd": {"n": 8, "layers": 3, "schedule": "pre-step"},
    "eagle3": {"steps": eagle3.STEPS},
    "ppsd": {"n": 8, "head": "layer"},
}
_MOST_STEPS = 64
"""Of EAGLE-3's unrolling: each costs a pass of the head over the whole batch."""
_CHOICES = {"schedule": ("pre-step", "post-step"), "head": ("layer", "mlp", "linear")}


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A method and all its options; ``label`` is unique among different specs."""

    method: str
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        parts = [self.method]
        for key, value in self.options.items():
            if key in ("n", "layers") or value != _DEFAULTS[self.method][key]:
                parts.append(f"{key[0]}{value}" if isinstance(value, int) else str(value))
        return "-".join(parts)


def parse_head(text: str) -> HeadSpec:
    """``METHOD[:KEY=VALUE,...]``. ``UsageError`` lists what is allowed."""
    method, _, rest = text.partition(":")
    if method not in _DEFAULTS:
        raise UsageError(f"unknown head {method!r}; allowed: {', '.join(_DEFAULTS)}")
    given: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key not in _DEFAULTS[method] or not equals:
            raise UsageError(f"head {text!r}: cannot read {pair!r}; allowed: " + _allowed(method))
        if key in given:
            raise UsageError(f"head {text!r}: {key} is given twice")
        given[key] = _converted(text, key, value)
    return HeadSpec(method, {**_DEFAULTS[method], **given})


def build_task(
    spec: HeadSpec, target: Target, vocabulary: DraftVocabulary, window: int | None, seed: int
) -> HeadTask:
    """The head in its initial state, ready to train."""
    chosen = spec.options
    if spec.method == "spd":
        module = spd.initial_module(target, chosen["n"], chosen["layers"], vocabulary, window, seed)
        return spd.SpdTask(spec.label, module, chosen["schedule"])
    if spec.method == "eagle3":
        head = eagle3.initial_head(target, vocabulary, window, seed)
        return eagle3.Eagle3Task(spec.label, head, chosen["steps"])
    exit_head = ppsd.initial_head(target, chosen["n"], vocabulary, window, seed, chosen["head"])
    return ppsd.PpsdTask(spec.label, exit_head, split_layers(target.num_layers, chosen["n"]))


def _converted(text: str, key: str, value: str) -> Any:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise UsageError(f"head {text!r}: {key} is {value!r}; allowed: {', '.join(_CHOICES[key])}")
        return value
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"head {text!r}: {key} must be a whole number >= 1, got {value!r}")
    if key == "steps" and int(value) > _MOST_STEPS:
        raise UsageError(f"head {text!r}: steps must be <= {_MOST_STEPS}, got {value}")
    return int(value)


def _allowed(method: str) -> str:
    return ", ".join(f"{key}=..." for key in _DEFAULTS[method])
