"""Small SVG charts as text. Colours are classes (``c0`` to ``c7``), so that the page's style decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 40
_CHARACTER, _LONGEST = 7, 40
"""Width of a letter of a bar's name, and letters of the longest one that is drawn whole."""
_INNER, _TALL = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM


@dataclass(frozen=True)
class Series:
    """A named line or group of bars: points (x, y) with the text shown when pointed at."""

    name: str
    points: Sequence[tuple[float, float, str]]


def lines(series: Sequence[Series], x_label: str, top: float | None = None) -> str:
    """Points joined by lines, y from 0; x is a whole number."""
    drawn = [each for each in series if each.points]
    if not drawn:
        return ""
    xs = [x for each in drawn for x, _, _ in each.points]
    scale = _Scale(min(xs), max(xs), top or max(y for each in drawn for _, y, _ in each.points), whole_x=True)
    body = [scale.axes(x_label)]
    for number, each in enumerate(series):
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y, _ in each.points)
        body.append(f'<polyline class="line s{number % 8}" points="{path}"/>')
        body += [
            f'<circle class="c{number % 8}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3">'
            f"{_tip(each.name, text)}</circle>"
            for x, y, text in each.points
        ]
    return _svg(body, _HEIGHT) + legend([each.name for each in series])


def histogram(series: Sequence[Series], x_label: str, width: float) -> str:
    """Bars of counts side by side; x is the lower edge of a bin ``width`` wide."""
    drawn = [each for each in series if each.points]
    if not drawn:
        return ""
    low = min(x for each in drawn for x, _, _ in each.points)
    high = max(x for each in drawn for x, _, _ in each.points) + width
    scale = _Scale(low, high, max(y for each in drawn for _, y, _ in each.points), whole_y=True)
    bar = (scale.x(low + width) - scale.x(low)) * 0.9 / len(series)
    body = [scale.axes(x_label)]
    for number, each in enumerate(series):
        for x, y, text in each.points:
            left = scale.x(x) + number * bar + bar * 0.05
            body.append(
                f'<rect class="c{number % 8}" x="{left:.1f}" y="{scale.y(y):.1f}" width="{bar * 0.95:.1f}" '
                f'height="{scale.y(0) - scale.y(y):.1f}">{_tip(each.name, text)}</rect>'
            )
    return _svg(body, _HEIGHT) + legend([each.name for each in series])


def bars(names: Sequence[str], groups: Sequence[Series], mark: float | None = None) -> str:
    """Horizontal bars: per name one bar of every group at its index x; a line at ``mark``."""
    values = [y for group in groups for _, y, _ in group.points]
    if not values:
        return ""
    top = max([*values, mark or 0]) * 1.12
    label, bar = _label_width(names), 13
    block = bar * len(groups) + 12
    body = []
    for row, name in enumerate(names):
        y = row * block + 8
        body.append(f'<text class="name" x="{label - 8}" y="{y + block / 2 - 3:.0f}">{_short(name)}</text>')
        for number, group in enumerate(groups):
            for x, value, text in group.points:
                if x != row:
                    continue
                length = value / top * (_WIDTH - label - 60)
                above = y + number * bar
                body.append(
                    f'<rect class="c{number % 8}" x="{label}" y="{above}" width="{length:.1f}" '
                    f'height="{bar - 2}">{_tip(f"{name}, {group.name}", text)}</rect>'
                    f'<text x="{label + length + 4:.1f}" y="{above + bar - 4}">'
                    f"{escape(text.split(' ')[0])}</text>"
                )
    height = len(names) * block + 12
    if mark is not None:
        at = label + mark / top * (_WIDTH - label - 60)
        body.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}"/>')
    return _svg(body, height) + legend([group.name for group in groups])


def stacked(names: Sequence[str], parts: Sequence[Series], unit: str) -> str:
    """Horizontal bars made of parts: a part's x is the index of its name."""
    totals = [sum(y for part in parts for x, y, _ in part.points if x == row) for row in range(len(names))]
    if not any(totals):
        return ""
    label, bar, body = _label_width(names), 18, []
    for row, name in enumerate(names):
        left, y = float(label), row * (bar + 8) + 6
        body.append(f'<text class="name" x="{label - 8}" y="{y + bar - 5}">{_short(name)}</text>')
        for number, part in enumerate(parts):
            for x, value, text in part.points:
                if x != row:
                    continue
                length = value / max(totals) * (_WIDTH - label - 90)
                body.append(
                    f'<rect class="c{number % 8}" x="{left:.1f}" y="{y}" width="{length:.1f}" height="{bar}">'
                    f"{_tip(f'{name}, {part.name}', text)}</rect>"
                )
                left += length
        body.append(f'<text x="{left + 4:.1f}" y="{y + bar - 5}">{totals[row]:.1f} {escape(unit)}</text>')
    return _svg(body, len(names) * (bar + 8) + 8) + legend([part.name for part in parts])


def _label_width(names: Sequence[str]) -> int:
    """Room to the left of horizontal bars."""
    longest = max((len(name) for name in names), default=0)
    return max(170, 12 + _CHARACTER * min(longest, _LONGEST))


def _short(name: str) -> str:
    return escape(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")


def legend(names: Sequence[str]) -> str:
    keys = "".join(
        f'<span class="key"><i class="b{i % 8}"></i>{escape(name)}</span>' for i, name in enumerate(names)
    )
    return f'<p class="legend">{keys}</p>'


def _tip(name: str, text: str) -> str:
    return f"<title>{escape(name)}: {escape(text)}</title>"


def _svg(body: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{"".join(body)}</svg>'


class _Scale:
    """Data to pixels, with a y axis from 0 in round steps."""

    def __init__(
        self, low: float, high: float, top: float, whole_x: bool = False, whole_y: bool = False
    ) -> None:
        self._whole_x = whole_x
        self._low, self._high = low, high if high > low else low + 1
        self._step = _round_step(top / 4 or 0.25)
        if whole_y:
            self._step = max(1.0, math.ceil(self._step))
        self._top = self._step * math.ceil(top / self._step - 1e-9) or self._step

    def x(self, value: float) -> float:
        return _LEFT + (value - self._low) / (self._high - self._low) * _INNER

    def y(self, value: float) -> float:
        return _TOP + _TALL - value / self._top * _TALL

    def axes(self, x_label: str) -> str:
        parts = []
        for number in range(round(self._top / self._step) + 1):
            value = number * self._step
            at = self.y(value)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}">{value:g}</text>')
        step = _round_step((self._high - self._low) / 8)
        if self._whole_x:
            step = max(1.0, step)
        value = math.ceil(self._low / step) * step
        while value <= self._high + 1e-9:
            at = self.x(value)
            parts.append(f'<text class="below" x="{at:.1f}" y="{_TOP + _TALL + 16}">{value:g}</text>')
            value += step
        middle = _LEFT + _INNER / 2
        parts.append(f'<text class="below" x="{middle:.0f}" y="{_HEIGHT - 6}">{escape(x_label)}</text>')
        return "".join(parts)


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
