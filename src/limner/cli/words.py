"""The command that shows a model's word embeddings: words."""

from __future__ import annotations

from typing import Annotated

import typer

from limner.bounds import Count
from limner.cli.app import MEASURE, app
from limner.cli.options import JsonOption, ModelOption, Number, require_one_model
from limner.cli.terminal import echo, print_json, tab_separated


@app.command(rich_help_panel=MEASURE)
def words(
    word: Annotated[str, typer.Argument(help="A word of the model's vocabulary.")],
    model: ModelOption = None,
    count: Annotated[int, typer.Option("--count", help="Number of words to show.", parser=Number(Count))] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show the words with the nearest embeddings, by Euclidean distance.

    Example: `limner words dog --model runs/mrnn`
    """
    run = require_one_model(model, "words")
    from limner.inference.word_vectors import nearest_words
    from limner.runs.trained_model import load_trained_model

    neighbours = nearest_words(load_trained_model(run), word, count)
    if as_json:
        print_json([{"word": other, "distance": distance} for other, distance in neighbours])
    else:
        for other, distance in neighbours:
            echo(tab_separated(f"{distance:.3f}", other))
