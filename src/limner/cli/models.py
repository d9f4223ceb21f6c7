"""Commands that train models and put them to work: train, describe, score, search, words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limner.cli.app import AsJson, Backbone, BeamSize, Data, Device, Ensemble, LengthPenalty, app, command_line, given
from limner.cli.terminal import (
    print_error,
    print_json,
    training_bar,
)
from limner.errors import MediaError, SettingsError

if TYPE_CHECKING:
    from limner.media.modality import Modality


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (mao2015/flickr8k) or a .yaml file.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")] = None,
    data: Data = ...,  # type: ignore[assignment]
    to: Annotated[Path, typer.Option("--out", help="The run folder.")] = ...,  # type: ignore[assignment]
    init: Annotated[Path | None, typer.Option(help="Begin with the weights and the vocabularies of this run.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with a run that was stopped, bit for bit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model.

    Example: `limner train mao2015/flickr8k --data collections/flickr8k --out runs/mrnn training.seed=2`
    """
    from limner.data.collection import Collection
    from limner.runs.recipe import load_recipe
    from limner.training.loop import train as train_model

    if to.is_file():
        raise SettingsError(f"{to}: is a file; name a folder")
    chosen = load_recipe(recipe, changes or [])
    with training_bar(chosen.training.metric) as bar:
        run = train_model(
            chosen,
            Collection.open(data),
            to,
            resume=resume,
            init=init,
            command=command_line(),
            note=lambda line: typer.echo(line, err=True),  # before the bar appears; with --json, not among the JSON
            progress=bar,
        )
    from limner.runs.records import RunConfig

    facts = RunConfig.load(run / "config.json").provenance
    if as_json:
        print_json({"run": str(run), **facts})
        return
    typer.echo(f"{run}: {_outcome(run, facts)} after {facts['seconds']} s")


def _outcome(run: Path, facts: dict[str, Any]) -> str:
    """What a training has come to, by its own records."""
    from limner.runs.records import read_log

    kept = ", ".join(
        f"{key.removeprefix('validation_')} {value}" for key, value in facts.items() if key.startswith("validation_")
    )
    if not any(line.kind == "train" for line in read_log(run / "log.jsonl")):
        return f"counted {facts['training_sentences']:,} sentences ({kept})"
    if fused := facts.get("fused_epochs"):
        epochs = f"{fused} epoch{'s' if fused > 1 else ''}"
        return f"{kept} before, then {epochs} on training and validation data; kept the weights of these"
    return f"kept the weights of epoch {facts['epochs']} ({kept})"


@app.command()
def describe(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    pictures: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them; sounds, if it learned those.")],
    beam_size: BeamSize = None,
    n_best: Annotated[int | None, typer.Option(help="Sentences for each picture.")] = None,
    length_penalty: LengthPenalty = None,
    min_length: Annotated[int | None, typer.Option(help="Words at least.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Words at most.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Words every sentence begins with.")] = None,
    sample: Annotated[bool, typer.Option(help="Draw words at random instead of the most probable.")] = False,
    temperature: Annotated[float, typer.Option(help="With --sample: below 1 bolder words are rarer.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="With --sample: among this many words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="With --sample: among words of this joint probability.")] = None,
    seed: Annotated[int, typer.Option(help="With --sample: decides the draws.")] = 0,
    ensemble: Ensemble = None,
    backbone: Backbone = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Describe pictures, or sounds with a model that learned from sounds.

    Example: `limner describe runs/mrnn photo.jpg --beam-size 5 --n-best 3`
    """
    from limner.inference.captioner import Captioner

    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = given(
        beam_size=beam_size,
        n_best=n_best,
        length_penalty=length_penalty,
        min_length=min_length,
        max_length=max_length,
        sample=drawn if sample else None,
    )
    captioner = Captioner.load(model, *(ensemble or []), backbone=backbone, device=device)
    files = _files(pictures, captioner.modality)
    first = [prefix] * len(files) if prefix else None
    told: list[dict[str, Any]] = []
    unreadable = 0
    for file, found in captioner.describe_each(files, prefixes=first, **search):
        if isinstance(found, MediaError):
            unreadable += 1
            print_error(found)
        elif as_json:
            told.append(
                {
                    "picture": str(file),
                    "descriptions": [{"text": one.text, "log_prob": one.log_prob, "score": one.score} for one in found],
                }
            )
        else:
            for one in found:
                typer.echo(f"{file}\t{one.text}" + (f"\t{one.log_prob:.2f}" if len(found) > 1 else ""))
    if as_json:
        print_json(told)
    if unreadable:
        raise typer.Exit(1)


@app.command()
def score(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    picture: Annotated[Path, typer.Argument(help="A picture, or a sound.")],
    sentences: Annotated[list[str], typer.Argument(help="Sentences about it.")],
    backbone: Backbone = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Tell how probable sentences are, given a picture.

    Example: `limner score runs/mrnn photo.jpg "A dog runs ." "A cat sleeps ."`
    """
    from limner.inference.scorer import Scorer

    scores = Scorer.load(model, backbone=backbone, device=device).score([picture] * len(sentences), sentences)
    if as_json:
        print_json([{"sentence": text, **one._asdict()} for text, one in zip(sentences, scores, strict=True)])
        return
    typer.echo("log-prob\tperplexity\tsentence")
    for text, one in zip(sentences, scores, strict=True):
        typer.echo(f"{one.log_prob:.2f}\t{one.perplexity:.2f}\t{text}")


@app.command()
def search(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    query: Annotated[
        str, typer.Argument(help="A sentence, to find pictures; or a picture's or sound's file, to find sentences.")
    ],
    data: Data,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    count: Annotated[int, typer.Option(help="How many to show.", min=1)] = 5,
    backbone: Backbone = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Find pictures of a collection by a sentence, or sentences by a picture.

    Example: `limner search runs/mrnn "a dog in the snow" --data collections/flickr8k`
    """
    from limner.data.collection import Collection
    from limner.inference.retriever import Retriever
    from limner.media.modality import find_modality

    by_picture = find_modality(query) is not None
    retriever = Retriever.load(model, backbone=backbone, device=device, encode_images=by_picture)
    collection = Collection.open(data)
    if by_picture:
        found = retriever.retrieve_sentences(query, collection, split=split, count=count)
    else:
        found = retriever.retrieve_images(query, collection, split=split, count=count)
    if as_json:
        print_json([one._asdict() for one in found])
        return
    for one in found:
        typer.echo(f"{one.score:.2f}\t{one.image or ''}\t{one.text}")


@app.command()
def words(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    word: Annotated[str, typer.Argument(help="A word of its vocabulary.")],
    count: Annotated[int, typer.Option(help="How many to show.", min=1)] = 10,
    to: Annotated[Path | None, typer.Option("--map", help="Also draw a map of the words, .png or .svg.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the words whose learned vectors are nearest to a word's, and draw a map of all.

    Example: `limner words runs/mrnn dog --map words.png`
    """
    from limner.inference.word_vectors import nearest_words
    from limner.runs.trained_model import load_trained_model

    found = nearest_words(load_trained_model(model), word, count)
    if to is not None:
        from limner.report.word_map import save_word_map

        save_word_map(model, to)
    if as_json:
        print_json([{"word": other, "distance": distance} for other, distance in found])
        return
    for other, distance in found:
        typer.echo(f"{distance:.3f}\t{other}")


def _files(paths: Sequence[Path], modality: Modality) -> list[Path]:
    """Replace folders by their files of a modality."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if modality.matches(file))
            if not inside:
                raise SettingsError(
                    f"{path}: no {modality.plural} in this folder; expected {', '.join(sorted(modality.suffixes))}"
                )
            files += inside
        else:
            files.append(path)
    return files
