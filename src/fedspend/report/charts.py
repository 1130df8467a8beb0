"""Line charts as inline SVG, which need no script, font or library.

Every chart is drawn in a wide and a narrow version; the style sheet shows the one that fits, so
text keeps its size on a phone. Colours are the classes `s1` to `s8`, which the style sheet defines
for light and dark mode. A value of None is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedspend.report.markup import Markup, element, join
from fedspend.report.scales import Scale, apart, round_scale, text_width, value_scale

COLOURS = 8
SIZES = {"broad": (1000, 380), "wide": (560, 300), "narrow": (340, 252)}
LONGEST_LABEL = {"broad": 28, "wide": 16, "narrow": 10}

Value = float | None


@dataclass(frozen=True)
class Series:
    """One line. `low` and `high` shade a range around it; after round `done` it is drawn faint."""

    label: str
    values: tuple[Value, ...]
    colour: int = 1
    dashed: bool = False
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    done: float = math.inf


@dataclass(frozen=True)
class Reference:
    """A dashed horizontal line; if it has a colour, it belongs to the series of that colour."""

    value: float
    label: str = ""
    colour: int = 0


@dataclass(frozen=True)
class Dot:
    """A place on a line where something begins or ends."""

    x: int
    value: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Lines over the rounds `x`, or over another `unit`."""

    title: str
    y_label: str
    x: tuple[int, ...]
    series: tuple[Series, ...]
    references: tuple[Reference, ...] = ()
    percent: bool = False
    zero: bool = True
    marked: tuple[int, ...] = ()  # rounds that are shaded
    unit: str = "round"
    dots: tuple[Dot, ...] = ()

    @property
    def empty(self) -> bool:
        return not any(value is not None for one in self.series for value in one.values)

    def show(self, value: float) -> str:
        """A value as shown to readers."""
        return f"{100 * value:.1f}%" if self.percent else f"{value:#.4g}".rstrip(".")


def draw(chart: Chart, broad: bool = False) -> Markup:
    """A chart at all its sizes; as wide as the page only if `broad`."""
    return join(_Drawing(chart, size).svg() for size in SIZES if broad or size != "broad")


def describe(chart: Chart) -> str:
    """The chart in words, for screen readers."""
    parts = []
    for one in chart.series:
        seen = [
            (x, value) for x, value in zip(chart.x, one.values, strict=True) if value is not None
        ]
        if seen:
            (a, first), (b, last) = seen[0], seen[-1]
            parts.append(
                f"{one.label} from {chart.show(first)} in {chart.unit} {a} to {chart.show(last)} "
                f"in {chart.unit} {b}"
            )
    parts += [
        f"{line.label} at {chart.show(line.value)}" for line in chart.references if line.label
    ]
    parts += [f"{dot.label} at {chart.unit} {dot.x}" for dot in chart.dots]
    return f"{chart.title}, by {chart.unit}. " + "; ".join(parts) + "."


class _Drawing:
    """One chart at one size."""

    def __init__(self, chart: Chart, size: str) -> None:
        self.chart, self.size = chart, size
        self.width, self.height = SIZES[size]
        values = [line.value for line in chart.references]
        for one in chart.series:
            values += [
                value
                for value in (*one.values, *(one.low or ()), *(one.high or ()))
                if value is not None
            ]
        top, bottom = 26.0, self.height - 40.0
        self.y = value_scale(values, bottom, top, zero=chart.zero, share=chart.percent)
        self.tick_words = [self.tick(value) for value in self.y.ticks]
        left = 10 + 0.88 * max(map(text_width, self.tick_words))  # ticks are not bold
        self.labels = [self.shorten(self.label(one)) for one in chart.series]
        right = self.width - 9 - max(map(text_width, self.labels), default=0)
        self.x: Scale = round_scale(
            chart.x[0],
            chart.x[-1],
            left + 4,
            right,
            room={"narrow": 5, "wide": 8, "broad": 12}[size],
        )

    def svg(self) -> Markup:
        return element(
            "svg",
            self.grid(),
            self.marks(),
            self.references(),
            [self.band(one) for one in self.chart.series],
            [self.line(one) for one in self.chart.series],
            self.dots(),
            self.end_labels(),
            element("line", class_="cursor", x1=0, x2=0, y1=self.y.end, y2=self.y.start),
            class_=f"chart {self.size}",
            viewBox=f"0 0 {self.width} {self.height}",
            role="img",
            aria_label=describe(self.chart),
            data_first=self.x.low,
            data_last=self.x.high,
            data_left=self.x.start,
            data_right=self.x.end,
        )

    # --- the frame ---

    def grid(self) -> Markup:
        parts = []
        for value, words in zip(self.y.ticks, self.tick_words, strict=True):
            y = self.y(value)
            parts.append(element("line", class_="grid", x1=self.x.start, x2=self.x.end, y1=y, y2=y))
            parts.append(
                element(
                    "text", words, class_="tick", x=self.x.start - 8, y=y + 4, text_anchor="end"
                )
            )
        for tick in self.x.ticks:
            x = self.x(tick)
            parts.append(
                element("line", class_="axis", x1=x, x2=x, y1=self.y.start, y2=self.y.start + 4)
            )
            parts.append(
                element(
                    "text",
                    f"{tick:g}",
                    class_="tick",
                    x=x,
                    y=self.y.start + 17,
                    text_anchor="middle",
                )
            )
        parts.append(
            element(
                "line",
                class_="axis",
                x1=self.x.start,
                x2=self.x.end,
                y1=self.y.start,
                y2=self.y.start,
            )
        )
        middle = (self.x.start + self.x.end) / 2
        parts.append(
            element(
                "text",
                self.chart.unit,
                class_="name",
                x=middle,
                y=self.y.start + 34,
                text_anchor="middle",
            )
        )
        log = " (log scale)" if self.y.log else ""
        parts.append(element("text", self.chart.y_label + log, class_="name", x=4, y=12))
        return join(parts)

    def marks(self) -> list[Markup]:
        half = max(1.5, (self.x.end - self.x.start) / max(1, self.x.high - self.x.low) / 2)
        return [
            element(
                "rect",
                class_="mark",
                x=self.x(t) - half,
                width=2 * half,
                y=self.y.end,
                height=self.y.start - self.y.end,
            )
            for t in self.chart.marked
        ]

    def references(self) -> Markup:
        parts = []
        for line in self.chart.references:
            y, colour = self.y(line.value), f"budget s{line.colour}" if line.colour else "reference"
            parts.append(element("line", class_=colour, x1=self.x.start, x2=self.x.end, y1=y, y2=y))
        named = [line for line in self.chart.references if line.label]
        places = apart([self.y(line.value) - 5 for line in named], 14, self.y.end - 5, self.y.start)
        for line, y in zip(named, places, strict=True):
            parts.append(
                element("text", line.label, class_="note", x=self.x.end - 4, y=y, text_anchor="end")
            )
        return join(parts)

    def dots(self) -> list[Markup]:
        """Dots with their names to the right, or to the left where there is no room."""
        parts = []
        for dot in self.chart.dots:
            x, y = self.x(dot.x), self.y(dot.value)
            fits = x + 8 + text_width(dot.label) < self.x.end
            parts.append(element("circle", class_="dot line s2", cx=x, cy=y, r=3.5))
            place, height, anchor = (x + 8, y + 4, "start") if fits else (x - 8, y - 6, "end")
            parts.append(
                element("text", dot.label, class_="note", x=place, y=height, text_anchor=anchor)
            )
        return parts

    def tick(self, value: float) -> str:
        return f"{100 * value:.3g}%" if self.chart.percent else f"{value:.3g}"

    # --- the lines ---

    def line(self, one: Series) -> Markup:
        places = list(zip(self.chart.x, one.values, strict=True))
        until = [(x, value) for x, value in places if x <= one.done]
        beyond = [(x, value) for x, value in places if x >= one.done]
        colour = f"s{one.colour}" + (" dashed" if one.dashed else "")
        return join(
            self.strokes(until, f"line {colour}"),
            self.strokes(beyond, f"line ahead {colour}") if len(beyond) > 1 else None,
        )

    def strokes(self, places: Iterable[tuple[float, Value]], kind: str) -> Markup:
        """A path for every stretch without gaps; a lone value is a dot."""
        stretches: list[list[tuple[float, float]]] = [[]]
        for x, value in places:
            if value is None:
                stretches.append([])
            else:
                stretches[-1].append((self.x(x), self.y(value)))
        long = [stretch for stretch in stretches if len(stretch) > 1]
        dots = [stretch[0] for stretch in stretches if len(stretch) == 1]
        path = (
            element("path", class_=kind, d="".join(_path(stretch) for stretch in long))
            if long
            else None
        )
        return join(
            path, [element("circle", class_=f"dot {kind}", cx=x, cy=y, r=3.5) for x, y in dots]
        )

    def band(self, one: Series) -> Markup | None:
        if (
            one.low is None
            or one.high is None
            or all(high <= low * (1 + 1e-6) for low, high in zip(one.low, one.high, strict=True))
        ):
            return None
        upper = [
            (self.x(x), self.y(value)) for x, value in zip(self.chart.x, one.high, strict=True)
        ]
        lower = [(self.x(x), self.y(value)) for x, value in zip(self.chart.x, one.low, strict=True)]
        return element("path", class_=f"band s{one.colour}", d=_path([*upper, *lower[::-1]]) + "Z")

    # --- the words at the end of each line ---

    def label(self, one: Series) -> str:
        """The name of a line, or its last value if it is the only one."""
        last = _last(one.values)
        if last is None:
            return ""
        return one.label if len(self.chart.series) > 1 else self.tick(last)

    def shorten(self, words: str) -> str:
        most = LONGEST_LABEL[self.size]
        return words if len(words) <= most else words[: most - 1] + "…"

    def end_labels(self) -> list[Markup]:
        shown = [
            (one, words) for one, words in zip(self.chart.series, self.labels, strict=True) if words
        ]
        ends = [self.y(value) for one, _ in shown if (value := _last(one.values)) is not None]
        places = apart(ends, 14, self.y.end, self.y.start)
        return [
            element("text", words, class_=f"label s{one.colour}", x=self.x.end + 7, y=place + 4)
            for (one, words), place in zip(shown, places, strict=True)
        ]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _last(values: Sequence[Value]) -> Value:
    return next((value for value in reversed(values) if value is not None), None)
