"""From a request to everything a run needs: target, prompts, methods and the configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.cli.arguments import RunRequest
from harness.cli.options import default_of, typed
from harness.config.drafters import preset_checkpoint
from harness.config.profiles import load_profile
from harness.execution.late import (
    benchmark_version,
    describe_chat,
    load_preset,
    load_prompts,
    load_target,
    render,
    score,
    scorer,
    seal_of,
)
from harness.execution.name import run_name
from harness.execution.sharding import ALONE, Shard
from harness.execution.target_watch import told
from harness.records import identity
from methods import registry
from methods.core import SamplingParams
from methods.errors import TargetChanged, UsageError, describe_failure
from methods.interface import DecodingMethod
from methods.source_code.code import Code

if TYPE_CHECKING:
    from harness.benchmarks import Prompt, PromptSet
    from harness.benchmarks.chat import Message
    from harness.config.presets import Preset
    from methods.models.seal import Seal

AR = "autoregressive"
RUNS = Path("results/runs")
REPLAY_BATCH = 16
"""Prompts AR decodes at once for replay. Part of the configuration: ties may depend on it."""

NO_WIDTH = 1
"""The width recorded for a method that has none."""


@dataclass(frozen=True)
class Plan:
    """A run, ready to start. ``methods`` maps each width to its method; ``baseline`` is the AR arm,
    None if it is switched off or AR is the method itself. ``config`` is what the fingerprint covers,
    ``sources`` where the prompts came from, ``shard`` which of them this process decodes. ``seal`` is the
    target as it was before the methods were built. ``code`` is, by name, the code that the records depend
    on; ``replaces`` says which records that are there already are set aside, while others are continued or
    refused."""

    request: RunRequest
    target: Any
    dtype: str
    stop_ids: tuple[int, ...]
    prompts: list[Prompt]
    methods: dict[int, DecodingMethod]
    baseline: DecodingMethod | None
    chat_format: dict[str, Any]
    config: dict[str, Any]
    sources: dict[str, Any]
    directory: Path
    seal: Seal
    code: Mapping[str, Code] = field(default_factory=dict)
    replaces: Literal["none", "other code", "all"] = "none"
    shard: Shard = ALONE

    def sampling(self, temperature: float, seed: int) -> SamplingParams:
        """Top-k and top-p apply to sampling only; greedy decoding has one law."""
        if temperature == 0:
            return SamplingParams(temperature=0.0, seed=seed)
        return SamplingParams(temperature, self.request.top_k, self.request.top_p, seed)

    def turns(self, prompt: Prompt) -> int:
        return 1 if self.request.turns == "first" else len(prompt.turns)

    def prompt_ids(self, prompt: Prompt, answers: Sequence[str]) -> list[int]:
        """Token ids of the dialogue up to the next answer, ``answers`` being those given so far."""
        messages: list[Message] = []
        for question, answer in zip(prompt.turns, answers, strict=False):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": prompt.turns[len(answers)]})
        return render(self.target.tokenizer, messages, self.chat_format["name"], self.thinking)

    @property
    def thinking(self) -> bool:
        return bool(self.chat_format["thinking"])

    def score(self, prompt: Prompt, text: str) -> float | None:
        """The benchmark's own score of an answer, None if it has none or programs may not run."""
        return score(prompt, text, self.request.execute_code)

    def scorer(self, benchmark: str) -> str:
        """By what ``score`` scores, "" where it gives no number."""
        return scorer(benchmark, self.request.execute_code)


def make_plan(request: RunRequest, shard: Shard = ALONE) -> Plan:
    """Check a request and load what it names, cheap things first.

    Raises ``UsageError`` for anything that cannot be used: unknown names, options the method does
    not have or refuses, no prompts, a prompt longer than the target's context. ``TargetChanged`` if
    building the method changed the target.
    """
    for module in request.plugins:
        registry.load_plugin(module)
    _check_names(request)
    measured = request.mode == "decode"
    with_ar = [] if measured and not request.baseline else [AR]
    code = identity.codes([request.method, *with_ar], request.mode)
    preset = load_preset(request.preset) if request.preset is not None else None
    widths, given = _widths(request), typed(request.method, request.options)
    method = registry.get(request.method)
    for extra in widths.values():
        method.Options(**given | extra)  # refuses what it can before anything loads
    options = typed(request.method, _with_checkpoint(request, preset))
    timed_ranks = measured and method.has_ranks(method.Options(**given))
    if request.timings and not (timed_ranks or request.emulate is not None):
        raise UsageError("--timings needs a process per stage: --runtime distributed, or --emulate PROFILE")
    sets = [load_prompts(name, request.data_dir, request.prompts) for name in request.benchmarks]
    target, dtype = _target(request, preset)
    seal = seal_of(target)
    methods = {width: _built(request.method, target, options | extra) for width, extra in widths.items()}
    baseline = registry.create(AR, target) if measured and request.baseline and request.method != AR else None
    if (difference := seal.difference()) is not None:
        raise TargetChanged(told([request.method], difference))
    template = request.template or (preset.chat_template if preset else None)
    chat_format = describe_chat(target.tokenizer, template, preset.thinking if preset else False)
    stop_ids = _stop_ids(preset, target)
    config = {
        **_decoding_config(request, methods),
        "baseline": baseline is not None,
        "preset": request.preset,
        "target": target.fingerprint(),
        "dtype": dtype,
        "attention": getattr(getattr(target.hf, "config", None), "_attn_implementation", None),
        "stop_ids": list(stop_ids),
        "template": chat_format,
        "benchmarks": {prompts.benchmark: _prompt_config(prompts, request) for prompts in sets},
        # What is timed while others run beside it is another measurement than what runs alone.
        **({"processes": shard.world} if measured and shard.world > 1 else {}),
        **({"timings": True} if request.timings and timed_ranks else {}),
    }
    plan = Plan(
        request=request,
        target=target,
        dtype=dtype,
        stop_ids=stop_ids,
        prompts=[prompt for prompts in sets for prompt in prompts.prompts],
        methods=methods,
        baseline=baseline,
        chat_format=chat_format,
        config=config,
        sources={prompts.benchmark: dataclasses.asdict(prompts.source) for prompts in sets},
        directory=request.results or RUNS / run_name(request, config),
        seal=seal,
        code=code | identity.checkpoint_code(options),
        replaces="all" if request.fresh else "none",
        shard=shard,
    )
    _check_context(plan)
    return plan


def _check_names(request: RunRequest) -> None:
    """Before anything that takes seconds to import."""
    registry.check_name(request.method)
    if request.preset is not None:
        load_preset(request.preset)
    for name in request.benchmarks:
        benchmark_version(name)
    if request.emulate is not None:
        load_profile(request.emulate)


def beside(plan: Plan, request: RunRequest) -> Plan:
    """``plan`` under another ``request`` for the same records, in the directory that has their name."""
    config = {name: value for name, value in plan.config.items() if name != "timings" or request.timings}
    directory = plan.directory.parent / run_name(request, config)
    return dataclasses.replace(plan, request=request, config=config, directory=directory)


def reference_plan(plan: Plan) -> Plan:
    """The plan of the AR outputs that a replay stands on: the same for every method, in a directory
    beside the method's own."""
    if plan.request.method == AR:
        return plan
    request = dataclasses.replace(plan.request, method=AR, options={}, widths=(), results=None)
    methods = {NO_WIDTH: registry.create(AR, plan.target)}
    config = {**plan.config, **_decoding_config(request, methods)}
    return dataclasses.replace(
        plan,
        request=request,
        methods=methods,
        baseline=None,
        config=config,
        directory=plan.directory.parent / run_name(request, config),
        code={AR: plan.code[AR]},
        replaces="none" if plan.replaces == "none" else "other code",  # what is of this code is for all
    )


def _with_checkpoint(request: RunRequest, preset: Preset | None) -> dict[str, str]:
    """The options given, and the preset's drafter where none is named."""
    default = preset_checkpoint(preset, request.method, request.options) if preset else None
    return request.options if default is None else request.options | {"checkpoint": default}


def _target(request: RunRequest, preset: Preset | None) -> tuple[Any, str]:
    """The loaded target and its dtype. ``--target`` replaces the preset's weights, not its rules."""
    dtype = request.dtype or (preset.dtype if preset else "float32")
    name = request.target or (preset.target if preset else "")
    target = load_target(name, dtype)
    if preset is not None and target.num_layers != preset.num_layers:
        raise UsageError(
            f"target {name!r} has {target.num_layers} layers, "
            f"preset {preset.name!r} is for {preset.num_layers}"
        )
    return target, dtype


def _stop_ids(preset: Preset | None, target: Any) -> tuple[int, ...]:
    if preset is None or preset.stop_ids == "generation_config":
        return tuple(target.stop_ids)
    return tuple(preset.stop_ids)


def _widths(request: RunRequest) -> dict[int, dict[str, int]]:
    """Each recorded width with the option that sets it."""
    if not request.widths:
        return {default_of(request.method, "width") or NO_WIDTH: {}}
    typed(request.method, {"width": str(request.widths[0])})  # refuses a method without width
    return {width: {"width": width} for width in request.widths}


def _built(name: str, target: Any, options: dict[str, Any]) -> DecodingMethod:
    """The method, ready to decode. What a plugin's own code raises when it is set up is a ``UsageError``."""
    try:
        method = registry.create(name, target, options)
        method.describe()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        reason = describe_failure(error, registry.get(name).__module__)
        raise UsageError(f"method {name!r} cannot be set up for {target.name}: {reason}") from error
    return method


def _decoding_config(request: RunRequest, methods: dict[int, DecodingMethod]) -> dict[str, Any]:
    options = {
        str(width): {"options": dataclasses.asdict(method.options), "facts": method.describe()}
        for width, method in methods.items()
    }
    asked = ("temperatures", "top_k", "top_p", "max_new_tokens", "seed", "repeats", "warmup", "execute_code")
    return {
        "method": request.method,
        "widths": options,
        "mode": request.mode,
        **({"batch": REPLAY_BATCH} if request.mode == "replay" else {}),
        "turns": request.turns,
        **{name: getattr(request, name) for name in asked},
    }


def _prompt_config(prompts: PromptSet, request: RunRequest) -> dict[str, Any]:
    """The prompts by content. Where the source lies on this machine is no part of it."""
    if not prompts.prompts:
        raise UsageError(f"benchmark {prompts.benchmark} has no prompts")
    return {
        "version": benchmark_version(prompts.benchmark),
        "prompts": len(prompts.prompts),
        "sha256": prompts.sha256,
        "source": prompts.source.kind,
        "source_sha256": prompts.source.sha256,
        "scorer": scorer(prompts.benchmark, request.execute_code) or None,
    }


def _check_context(plan: Plan) -> None:
    for prompt in plan.prompts:
        length = len(plan.prompt_ids(prompt, []))
        if length >= plan.target.context:
            raise UsageError(
                f"prompt {prompt.prompt_id} of {prompt.benchmark} has {length} tokens; the target's context "
                f"is {plan.target.context}, so at most {plan.target.context - 1} are allowed"
            )
