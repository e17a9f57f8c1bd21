"""Small SVG charts as text. Colours are classes (``c0`` to ``c7``), so that the page's style decides.

A chart is 400 units wide, about as wide as a telephone's screen, so that its text is read there, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from harness.analysis.estimate import Interval

_WIDTH, _HEIGHT = 400, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 10, 10, 40
_INNER, _TALL = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_LONGEST = 52
"""Letters of the longest name of a bar that is drawn whole."""
_NAME, _BAR, _GAP, _BESIDE = 18, 14, 8, 84
"""Heights of a name, a bar and the gap below a name's bars; room to the right of the longest bar."""


@dataclass(frozen=True)
class Point:
    """A value ``y`` at ``x``, the ``text`` shown when it is pointed at, and the ends of its whisker."""

    x: float
    y: float
    text: str
    interval: Interval | None = None


@dataclass(frozen=True)
class Series:
    """A named line or group of bars."""

    name: str
    points: Sequence[Point]


def lines(series: Sequence[Series], x_label: str, top: float | None = None) -> str:
    """Points joined by lines, y from 0; x is a whole number."""
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    xs = [point.x for point in points]
    scale = _Scale(min(xs), max(xs), top or max(point.y for point in points), whole_x=True)
    body = [scale.axes(x_label)]
    for number, each in enumerate(series):
        path = " ".join(f"{scale.x(point.x):.1f},{scale.y(point.y):.1f}" for point in each.points)
        body.append(f'<polyline class="line s{number % 8}" points="{path}"/>')
        body += [
            f'<circle class="c{number % 8}" cx="{scale.x(point.x):.1f}" cy="{scale.y(point.y):.1f}" r="3">'
            f"{_tip(each.name, point.text)}</circle>"
            for point in each.points
        ]
    return _svg(body, _HEIGHT) + legend([each.name for each in series])


def histogram(series: Sequence[Series], x_label: str, width: float) -> str:
    """Bars of counts side by side; x is the lower edge of a bin ``width`` wide."""
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    low = min(point.x for point in points)
    high = max(point.x for point in points) + width
    scale = _Scale(low, high, max(point.y for point in points), whole_y=True)
    bar = (scale.x(low + width) - scale.x(low)) * 0.9 / len(series)
    body = [scale.axes(x_label)]
    for number, each in enumerate(series):
        for point in each.points:
            left, above = scale.x(point.x) + number * bar + bar * 0.05, scale.y(point.y)
            body.append(
                f'<rect class="c{number % 8}" x="{left:.1f}" y="{above:.1f}" width="{bar * 0.95:.1f}" '
                f'height="{scale.y(0) - above:.1f}">{_tip(each.name, point.text)}</rect>'
            )
    return _svg(body, _HEIGHT) + legend([each.name for each in series])


def bars(names: Sequence[str], groups: Sequence[Series], mark: float) -> str:
    """Horizontal bars below each name: one of every group at its index x, with a whisker from end to end
    of its interval; a dashed line at ``mark``."""
    drawn = [point for group in groups for point in group.points]
    if not drawn:
        return ""
    unit = _unit([*map(_end, drawn), mark])
    block = _NAME + _BAR * len(groups) + _GAP
    body = []
    for row, name in enumerate(names):
        top = row * block
        body.append(_name(name, top))
        for number, group in enumerate(groups):
            above = top + _NAME + number * _BAR
            for point in (each for each in group.points if each.x == row):
                body += [
                    f'<rect class="c{number % 8}" x="0" y="{above}" width="{point.y * unit:.1f}" '
                    f'height="{_BAR - 2}">{_tip(f"{name}, {group.name}", point.text)}</rect>',
                    _whisker(point, unit, above + (_BAR - 2) / 2),
                    _beside(_end(point) * unit, above + _BAR - 3, f"{point.y:.2f}"),
                ]
        body.append(_mark(mark * unit, top + _NAME, _BAR * len(groups)))
    return _svg(body, len(names) * block) + legend([group.name for group in groups])


def stacked(
    names: Sequence[str], parts: Sequence[Series], totals: Sequence[Point], mark: float | None = None
) -> str:
    """A horizontal bar made of parts below each name: a part's x is the index of its name. ``totals``,
    one for each name, say what stands at a bar's end and have its whisker."""
    if not any(point.y for point in totals):
        return ""
    unit = _unit([*map(_end, totals), mark or 0])
    block, body = _NAME + _BAR + _GAP, []
    for row, (name, total) in enumerate(zip(names, totals, strict=True)):
        left, top = 0.0, row * block
        body.append(_name(name, top))
        for number, part in enumerate(parts):
            for point in (each for each in part.points if each.x == row):
                length = point.y * unit
                body.append(
                    f'<rect class="c{number % 8}" x="{left:.1f}" y="{top + _NAME}" width="{length:.1f}" '
                    f'height="{_BAR - 2}">{_tip(f"{name}, {part.name}", point.text)}</rect>'
                )
                left += length
        body.append("" if mark is None else _mark(mark * unit, top + _NAME, _BAR))
        body.append(_whisker(total, unit, top + _NAME + (_BAR - 2) / 2))
        body.append(_beside(_end(total) * unit, top + _NAME + _BAR - 3, total.text))
    return _svg(body, len(names) * block) + legend([part.name for part in parts])


def _unit(values: Sequence[float]) -> float:
    """Length of 1 where the largest of ``values`` leaves room for what stands beside a bar."""
    return (_WIDTH - _BESIDE) / max(values)


def _end(point: Point) -> float:
    return max(point.y, point.interval[1] if point.interval else 0)


def _name(name: str, top: float) -> str:
    short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    return f'<text class="name" x="0" y="{top + _NAME - 5}">{escape(short)}</text>'


def _beside(x: float, y: float, text: str) -> str:
    return f'<text x="{x + 6:.1f}" y="{y}">{escape(text)}</text>'


def _mark(x: float, top: float, height: float) -> str:
    return f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 3}" y2="{top + height + 1}"/>'


def _whisker(point: Point, unit: float, middle: float) -> str:
    if point.interval is None:
        return ""
    low, high = (end * unit for end in point.interval)
    ends = "".join(f"M{x:.1f} {middle - 4}v8" for x in (low, high))
    return f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}{ends}"/>'


def legend(names: Sequence[str]) -> str:
    keys = "".join(f'<span class="key">{swatch(i)}{escape(name)}</span>' for i, name in enumerate(names))
    return f'<p class="legend">{keys}</p>'


def swatch(number: int) -> str:
    """The colour of the ``number``-th series."""
    return f'<i class="swatch b{number % 8}"></i>'


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
        step = _round_step((self._high - self._low) / 6)
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
