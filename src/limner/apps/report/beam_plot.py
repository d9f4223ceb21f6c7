"""The tree of a beam search as a plot and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from limner.inference.explain_beam import BeamExplanation, BeamNode, BeamTree
from limner.plots.figures import COLOURS, FAINT, INK, fonts_for, shortened

Point = tuple[float, float]

COLUMN, ROW = 1.28, 0.62  # distance of two steps and of two hypotheses of a step, in inches
LEFT = 0.5  # space before the root in inches
LINE = 0.21  # height of a line of the ranking in inches
WORD = 10  # maximum number of characters of a word in a node
MAX_RANKED = 8  # number of hypotheses of the ranking that are printed under the tree
_BLUE, _GREEN, _DROPPED_NUMBER = COLOURS[0], COLOURS[2], "#8b919c"
_CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}


def beam_tree(explanation: BeamExplanation) -> Figure:
    """Plot the tree of a beam search from left to right, one column for each step.

    As in the usual drawings of beam search, the number on an arrow is the log-probability of the word, and the number
    above a node is the log-probability of the whole hypothesis. Grey hypotheses fell out of the beam; green hypotheses
    are complete, with their final rank; a dashed frame marks hypotheses that were in the beam when the search stopped
    or that were cut off at the maximum length. The path of the best hypothesis is blue.
    """
    tree = explanation.tree
    places = _layout(tree)
    columns = 1 + max(x for x, _ in places)
    top, bottom = max(y for _, y in places), min(y for _, y in places)
    lines = _ranking_lines(explanation)[: MAX_RANKED + 1]
    height = (top - bottom) * ROW + 1.5 + LINE * (len(lines) + 1)
    figure = Figure(figsize=(max(6.5, columns * COLUMN + LEFT), height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, figure.get_figwidth())
    axes.set_ylim(0, height)
    positions = [(LEFT + x * COLUMN, height - 0.85 - (top - y) * ROW) for x, y in places]
    best = explanation.ranking[0].node if explanation.ranking else 0
    chosen = set(tree.path(best))
    for number, node in enumerate(tree.nodes):
        if node.parent is not None:
            tail, head = positions[node.parent], positions[number]
            words = explanation.words[node.parent], explanation.words[number]
            start, end = (tail[0] + _half_width(words[0]), tail[1]), (head[0] - _half_width(words[1]), head[1])
            _draw_arrow(axes, node, start, end, number in chosen)
    for number, place in enumerate(positions):
        _draw_node(axes, explanation, number, place, number in chosen)
    _draw_text(axes, explanation, lines, height)
    return figure


def _layout(tree: BeamTree) -> list[tuple[int, float]]:
    """Place the nodes: column by step, rows in the order of their parents without crossings, centred at 0."""
    columns: list[list[int]] = [[0]]
    while True:
        order = {number: place for place, number in enumerate(columns[-1])}
        following = [number for number, node in enumerate(tree.nodes) if node.parent in order]
        if not following:
            break
        # Rows count upwards: of the children of a node, the most probable is the highest.
        following.sort(key=lambda number: (order[tree.nodes[number].parent or 0], tree.nodes[number].total))
        columns.append(following)
    places: dict[int, tuple[int, float]] = {}
    for x, column in enumerate(columns):
        for row, number in enumerate(column):
            places[number] = x, row - (len(column) - 1) / 2
    return [places[number] for number in range(len(tree.nodes))]


def _draw_arrow(axes: Axes, node: BeamNode, start: Point, end: Point, best: bool) -> None:
    colour = _BLUE if best else FAINT if node.outcome == "dropped" else INK
    style = {"arrowstyle": "-|>,head_width=0.12,head_length=0.25", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**style, "linewidth": 2.0 if best else 0.8})
    share = 0.5 if start[1] == end[1] else 0.6  # arrows from one node are further apart at their heads
    middle = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.text(*middle, _number(node.log_prob), fontsize=7, color=_BLUE if best else INK, bbox=box, **_CENTRED)


def _draw_node(axes: Axes, explanation: BeamExplanation, number: int, place: Point, best: bool) -> None:
    node, word = explanation.tree.nodes[number], explanation.words[number]
    colour = _BLUE if best else _GREEN if node.outcome == "complete" else FAINT if node.outcome == "dropped" else INK
    box = {"boxstyle": "round,pad=0.28", "facecolor": "white", "edgecolor": colour, "linewidth": 1.8 if best else 0.9}
    box["linestyle"] = "--" if node.outcome in ("open", "cut off") else "-"
    ink = INK if node.outcome == "dropped" and not best else "black"
    axes.text(
        *place, shortened(word, WORD), fontsize=9, family=fonts_for(word), color=ink, bbox=box, zorder=3, **_CENTRED
    )
    total = "" if node.parent is None and not explanation.tree.prefix else _number(node.total)
    number_colour = _DROPPED_NUMBER if colour == FAINT else colour
    axes.text(place[0], place[1] + 0.19, total, ha="center", va="bottom", fontsize=7.5, color=number_colour, zorder=3)
    rank = next((rank for rank, ranked in enumerate(explanation.ranking, 1) if ranked.node == number), None)
    if rank is not None:
        right = place[0] + _half_width(word) + 0.05
        axes.text(right, place[1], f"#{rank}", va="center", fontsize=8.5, color=colour, weight="bold")


def _half_width(word: str) -> float:
    """Half of the approximate width of the node of a word in inches."""
    return 0.08 + 0.037 * len(shortened(word, WORD))


def _draw_text(axes: Axes, explanation: BeamExplanation, lines: Sequence[str], height: float) -> None:
    """Draw the explanation of the legend above the tree, and the ranking under it."""
    heading = f"Beam search, {explanation.settings.beam_size} hypotheses. On an arrow: log P(word); above a node: "
    axes.text(0.15, height - 0.14, f"{heading}log P(hypothesis).", va="top", fontsize=9.5, weight="bold")
    legend = {"▢ best": _BLUE, "▢ complete, with rank": _GREEN, "▢ continued": INK, "▢ fell out of the beam": FAINT}
    x = 0.15
    for name, colour in {**legend, "dashed: in the beam when the search stopped, or cut off": INK}.items():
        axes.text(x, height - 0.36, name, va="top", fontsize=8.5, color=colour)
        x += 0.2 + 0.075 * len(name)
    for row, line in enumerate(lines):
        colour, weight = _BLUE if row == 1 else INK if row else "black", "normal" if row else "bold"
        text = axes.text(0.15, LINE * (len(lines) - row), line, va="center", fontsize=8.5, family="monospace")
        text.set(color=colour, weight=weight)


def _ranking_lines(explanation: BeamExplanation) -> list[str]:
    """Return the ranking as lines of a table; the first names the columns."""
    penalty = explanation.settings.length_penalty
    score_name = f"log P / length^{penalty:g}"  # without a penalty the score is log P
    lines = [f"rank  {f'{score_name} ' if penalty else ''}   log P  length  sentence"]
    for rank, (number, score) in enumerate(explanation.ranking, 1):
        node = explanation.tree.nodes[number]
        numbers = (
            f"{f'#{rank}':<5} {f'{score:>{len(score_name)}.2f} ' if penalty else ''}{node.total:8.2f} {node.length:7d}"
        )
        lines.append(f"{numbers}  {explanation.sentence(number)}{' …' if node.outcome == 'cut off' else ''}")
    return lines


def beam_text(explanation: BeamExplanation) -> str:
    """Write the tree of a beam search as text, one hypothesis a line, and the final ranking.

    A line has the word, its log-probability, and the log-probability and outcome of the hypothesis.
    """
    tree = explanation.tree
    children: list[list[int]] = [[] for _ in tree.nodes]
    for number, node in enumerate(tree.nodes):
        if node.parent is not None:
            children[node.parent].append(number)
    ranks = {hypothesis.node: rank for rank, hypothesis in enumerate(explanation.ranking, 1)}
    lines: list[str] = []
    pending = [(0, "", "")]  # a stack: a sentence may be longer than Python's recursion allows
    while pending:
        number, lead, branch = pending.pop()
        node = tree.nodes[number]
        numbers = f" {_number(node.log_prob)} ({_number(node.total)})" if node.parent is not None or tree.prefix else ""
        note = f"  #{ranks[number]}" if number in ranks else ""
        note += "" if node.outcome == "continued" else f"  {_OUTCOMES[node.outcome]}"
        lines.append(f"{lead}{branch}{explanation.words[number]}{numbers}{note}")
        # A single continuation stays at the same depth; only branches are indented.
        below = lead + {"": "", "├ ": "│ ", "└ ": "  "}[branch]
        ordered = sorted(children[number], key=lambda child: -tree.nodes[child].total)
        for place, child in reversed(list(enumerate(ordered))):
            pending.append((child, below, "└ " if place == len(ordered) - 1 else "├ "))
    return "\n".join([*lines, "", *_ranking_lines(explanation)])


_OUTCOMES = {"dropped": "fell out", "complete": "complete", "cut off": "cut off", "open": "in the beam at the end"}


def _number(log_prob: float) -> str:
    return f"{log_prob:.2f}".replace("-", "−") if log_prob <= -0.005 else "0"
