"""The command that shows a model's word embeddings: words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.bounds import Count
from limner.cli.app import MEASURE, app
from limner.cli.options import ForceOption, JsonOption, ModelOption, Number, require_one_model
from limner.cli.terminal import activity, echo, print_json, tab_separated
from limner.storage.outputs import claim_file, save_output


@app.command(rich_help_panel=MEASURE)
def words(
    word: Annotated[str, typer.Argument(help="A word of the model's vocabulary.")],
    model: ModelOption = None,
    count: Annotated[int, typer.Option("--count", help="Number of words to show.", parser=Number(Count))] = 10,
    map_file: Annotated[
        Path | None,
        typer.Option("--map", metavar="FILE", help="Also draw a two-dimensional map of the words (.png or .svg)."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the words with the nearest embeddings, by Euclidean distance, and draw a map of all.

    Example: `limner words dog --model runs/mrnn --map words.png`
    """
    run = require_one_model(model, "words")
    if map_file is not None:
        claim_file(map_file, "--map", force=force)
    from limner.inference.word_vectors import nearest_words
    from limner.runs.trained_model import load_trained_model

    neighbours = nearest_words(load_trained_model(run), word, count)
    if as_json:
        print_json([{"word": other, "distance": distance} for other, distance in neighbours])
    else:
        for other, distance in neighbours:
            echo(tab_separated(f"{distance:.3f}", other))
    if map_file is not None:
        from limner.report.word_map import save_word_map

        with activity("drawing the map"):
            save_output(map_file, lambda file: save_word_map(run, file)).require()
