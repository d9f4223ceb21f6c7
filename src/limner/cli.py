"""The command line: each command parses, calls one public function and prints.

Everything heavy is imported inside the commands, so that `limner --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

from limner.errors import LimnerError, PictureError, SettingsError
from limner.terminal import (
    err,
    print_error,
    print_json,
    print_scores,
    print_summary,
    progress_bar,
    progress_bars,
    training_bar,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Language models that look: describe, score and search pictures.\n\n"
    "Begin with `limner demo`, which draws a collection, learns from it and writes a report.",
)
INTERRUPTED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Data = Annotated[Path, typer.Option("--data", help="The collection.")]
Backbone = Annotated[
    str | None,
    typer.Option(help="Hub id or folder of the network that made the features, if it is not where it was."),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
BeamSize = Annotated[int | None, typer.Option(help="Sentences kept at every step; 1 is greedy search.")]
LengthPenalty = Annotated[float | None, typer.Option(help="0 ranks by log-probability; more favours longer sentences.")]
Ensemble = Annotated[list[Path] | None, typer.Option(help="Further models; all describe together. Repeatable.")]


def main() -> None:
    """Run the command line; what the user can mend is one clear line, not a traceback."""
    warnings.filterwarnings("ignore")
    os.environ.setdefault("LANCE_LOG", "error")
    handler = RichHandler(console=err, show_path=False, show_time=False)
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith("limner"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        app()
    except LimnerError as error:
        print_error(error)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print("stopped; nothing already written is lost, and the same command (train: with --resume) goes on")
        raise
    except OSError as error:
        print_error(error)
        sys.exit(1)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"limner {metadata.version('limner')}")
        raise typer.Exit


@app.callback()
def _common(
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell more about what is done.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Tell the version.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    logging.getLogger("limner").setLevel(logging.INFO if verbose else logging.WARNING)


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(help="flickr, multi30k, coco, karpathy, iapr, jsonl, csv or folder.")],
    source: Annotated[Path, typer.Argument(help="The folder or file to read.")],
    collection: Annotated[Path, typer.Argument(help="The collection to make, or to add to.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures, if not where the corpus puts it.")
    ] = None,
    splits: Annotated[Path | None, typer.Option(help="Folder of lists train.txt, val.txt, test.txt.")] = None,
    lang: Annotated[str | None, typer.Option(help="Language of the sentences.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of items without one; auto deals them out 80/10/10.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse where something would be skipped.")] = False,
    copy: Annotated[bool, typer.Option(help="Copy the pictures into the collection.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a collection of pictures and sentences, or add to one.

    Example: `limner import flickr ~/flickr8k collections/flickr8k`
    """
    from limner.data.readers import Options, import_collection

    options = Options(images=images, splits=splits, lang=lang, split=split)
    with progress_bar("copying pictures") as bar:
        report = import_collection(kind, source, collection, options, strict=strict, copy=copy, progress=bar)
    if as_json:
        print_json(
            {
                "collection": str(report.collection),
                "items": report.items,
                "sentences": report.sentences,
                **report.changes._asdict(),
                "skipped": dict(report.skipped),
                "examples": report.examples,
            }
        )
    else:
        for line in report.lines():
            typer.echo(line)


@app.command()
def show(
    collection: Annotated[Path, typer.Argument(help="The collection.")],
    split: Annotated[str | None, typer.Option(help="Split of the contact sheet.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet, a PNG of some pictures, here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a collection holds: counts, missing pictures, feature tables, a contact sheet.

    Example: `limner show collections/flickr8k --sheet sheet.png`
    """
    from limner.data.collection import Collection
    from limner.data.contact import contact_sheet, save_sheet, summary

    opened = Collection.open(collection)
    if sheet is not None:
        save_sheet(contact_sheet(opened, split), sheet)
        err.print(f"contact sheet: {sheet}")
    found = summary(opened)
    if as_json:
        print_json({**asdict(found), "collection": str(collection)})
    else:
        print_summary(found)


@app.command()
def features(
    collection: Annotated[Path, typer.Argument(help="The collection.")],
    backbone: Annotated[
        str,
        typer.Option(help="Hub id, folder in transformers format, vgg19:FILE, alexnet:FILE, or pixels:64 for none."),
    ],
    layer: Annotated[str | None, typer.Option(help="Whose output to take (res4f, conv5_4, layer.12 …).")] = None,
    kind: Annotated[str, typer.Option(help="vector (pooled), grid (one a location) or both.")] = "vector",
    size: Annotated[int | None, typer.Option(help="Side of the network's input in pixels.")] = None,
    resize: Annotated[str | None, typer.Option(help="crop or squash; default: as the network was trained.")] = None,
    views: Annotated[int, typer.Option(help="Views averaged: 1, 2 (and mirrored) or 10.")] = 1,
    name: Annotated[str | None, typer.Option(help="Name of the table.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only these splits. Repeatable.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pictures looked at together.", min=1)] = 32,
    precision: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    device: Device = "cpu",
    strict: Annotated[bool, typer.Option(help="Stop at a picture that cannot be read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at every picture once and store what was seen; a run that was stopped goes on where it was.

    Example: `limner features collections/flickr8k --backbone google/mobilenet_v2_1.0_224`
    """
    from limner.data.collection import Collection
    from limner.vision.backbones import load_backbone
    from limner.vision.features import extract

    eye = load_backbone(
        backbone,
        layer=layer,
        kind=kind,  # type: ignore[arg-type]  # checked there, with a message
        size=size,
        resize=resize,  # type: ignore[arg-type]
        views=views,
        precision=precision,
        device=device,
    )
    with progress_bar("looking at pictures") as bar:
        done = extract(
            Collection.open(collection),
            eye,
            name=name,
            splits=split,
            batch_size=batch_size,
            strict=strict,
            progress=bar,
        )
    if as_json:
        tables = [table.spec.model_dump(mode="json") for table in done.tables]
        print_json({"tables": tables, "added": done.added, "present": done.present, "skipped": done.skipped})
        return
    for table in done.tables:
        typer.echo(f"{table.spec.name}: {table.spec}")
    typer.echo(f"{done.added:,} pictures looked at, {done.present:,} known before, {len(done.skipped):,} skipped")
    for item, reason in list(done.skipped.items())[:5]:
        typer.echo(f"  {item}: {reason}")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (mao2015/flickr8k) or a .yaml file.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")] = None,
    data: Data = ...,  # type: ignore[assignment]
    to: Annotated[Path, typer.Option("--out", help="The run folder.")] = ...,  # type: ignore[assignment]
    resume: Annotated[bool, typer.Option(help="Go on with a run that was stopped, bit for bit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model.

    Example: `limner train mao2015/flickr8k --data collections/flickr8k --out runs/mrnn training.seed=2`
    """
    from limner.data.collection import Collection
    from limner.recipe import load_recipe
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
            command=_command(),
            progress=bar,
        )
    from limner.records import RunConfig

    facts = RunConfig.load(run / "config.json").provenance
    if as_json:
        print_json({"run": str(run), **facts})
        return
    kept = ", ".join(
        f"{key.removeprefix('validation_')} {value}" for key, value in facts.items() if key.startswith("validation_")
    )
    typer.echo(f"{run}: kept the weights of epoch {facts['epochs']} ({kept}) after {facts['seconds']} s")


@app.command()
def describe(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    pictures: Annotated[list[Path], typer.Argument(help="Pictures, or folders of pictures.")],
    beam_size: BeamSize = None,
    n_best: Annotated[int | None, typer.Option(help="Sentences for each picture.")] = None,
    length_penalty: LengthPenalty = None,
    min_length: Annotated[int | None, typer.Option(help="Words at least.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Words at most.")] = None,
    first_words: Annotated[str | None, typer.Option(help="Words every sentence begins with.")] = None,
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
    """Describe pictures.

    Example: `limner describe runs/mrnn photo.jpg --beam-size 5 --n-best 3`
    """
    from limner.tasks import load

    files = _pictures(pictures)
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = _given(
        beam_size=beam_size,
        n_best=n_best,
        length_penalty=length_penalty,
        min_length=min_length,
        max_length=max_length,
        sample=drawn if sample else None,
    )
    captioner = load(model, *(ensemble or []), backbone=backbone, device=device)
    first = [first_words] * len(files) if first_words else None
    told: list[dict[str, Any]] = []
    unreadable = 0
    for file, found in captioner.describe_each(files, first_words=first, **search):
        if isinstance(found, PictureError):
            unreadable += 1
            print_error(found)
        elif as_json:
            told.append({"picture": str(file), "descriptions": [one._asdict() for one in found]})
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
    picture: Annotated[Path, typer.Argument(help="A picture.")],
    sentences: Annotated[list[str], typer.Argument(help="Sentences about it.")],
    backbone: Backbone = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Tell how probable sentences are, given a picture.

    Example: `limner score runs/mrnn photo.jpg "A dog runs ." "A cat sleeps ."`
    """
    from limner.tasks import load

    scores = load(model, backbone=backbone, device=device).score([picture] * len(sentences), sentences)
    if as_json:
        print_json([{"sentence": text, **one._asdict()} for text, one in zip(sentences, scores, strict=True)])
        return
    typer.echo("log-prob\tperplexity\tsentence")
    for text, one in zip(sentences, scores, strict=True):
        typer.echo(f"{one.log_prob:.2f}\t{one.perplexity:.2f}\t{text}")


@app.command()
def search(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    query: Annotated[str, typer.Argument(help="A sentence, to find pictures; or a picture file, to find sentences.")],
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
    from limner.tasks import load
    from limner.vision.images import PICTURE_SUFFIXES

    by_picture = Path(query).suffix.lower() in PICTURE_SUFFIXES
    captioner = load(model, backbone=backbone, device=device, look=by_picture)
    collection = Collection.open(data)
    if by_picture:
        found = captioner.find_sentences(query, collection, split=split, count=count)
    else:
        found = captioner.find_pictures(query, collection, split=split, count=count)
    if as_json:
        print_json([one._asdict() for one in found])
        return
    for one in found:
        typer.echo(f"{one.score:.2f}\t{one.image or ''}\t{one.text}")


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    data: Data,
    split: Annotated[str | None, typer.Option(help="Default: the recipe's test split.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Sentence metrics; default: all. Repeatable.")] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    retrieval: Annotated[bool, typer.Option(help="Search both ways as well.")] = True,
    marginal: Annotated[
        int,
        typer.Option(
            help="Training pictures sampled for the normalised probability; 0: the split's own pictures.", min=0
        ),
    ] = 1000,
    memory: Annotated[int, typer.Option(help="Working memory of the search in MiB.", min=1)] = 128,
    leave_out: Annotated[bool, typer.Option(help="Go on without pictures that have no features.")] = False,
    ensemble: Ensemble = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure a model on a split: sentences, perplexity, search. The report reads what this writes.

    Example: `limner evaluate runs/mrnn --data collections/flickr8k --beam-size 5`
    """
    from limner.checkpoint import load_checkpoint
    from limner.data.collection import Collection
    from limner.evaluation import DEFAULT_METRICS, save_evaluation
    from limner.evaluation import evaluate as evaluate_models
    from limner.search import SearchSettings

    models = [load_checkpoint(folder, device) for folder in (model, *(ensemble or []))]
    changed = _given(beam_size=beam_size, length_penalty=length_penalty)
    settings = SearchSettings.parse({**models[0].recipe.search.model_dump(), **changed}, where="search")
    with progress_bars() as progress:
        found = evaluate_models(
            models,
            Collection.open(data),
            split=split,
            settings=settings,
            metrics=metric or DEFAULT_METRICS,
            retrieval=retrieval,
            marginal=marginal,
            leave_out=leave_out,
            budget=memory << 20,
            command=_command(),
            progress=progress,
        )
    path = save_evaluation(found, model)
    if as_json:
        print_json(
            {
                "file": str(path),
                "seconds": found.seconds,
                "left_out": found.left_out,
                "scores": [score._asdict() for score in found.scores],
            }
        )
        return
    published = models[0].recipe.published
    print_scores(found.scores, published.values if published else {}, published.row if published else "")
    without = f", without {found.left_out:,} items whose picture has no features" if found.left_out else ""
    typer.echo(f"{path} ({found.seconds:.1f} s{without})")


@app.command()
def words(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    word: Annotated[str, typer.Argument(help="A word of its vocabulary.")],
    count: Annotated[int, typer.Option(help="How many to show.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the words whose learned vectors are nearest to a word's.

    Example: `limner words runs/mrnn dog`
    """
    from limner.tasks import load

    found = load(model, look=False).nearest_words(word, count)
    if as_json:
        print_json([{"word": other, "distance": distance} for other, distance in found])
        return
    for other, distance in found:
        typer.echo(f"{distance:.3f}\t{other}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder, best after 'limner evaluate'.")],
    to: Annotated[Path | None, typer.Option("--out", help="Default: report.html in the run folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report, one self-contained HTML file: curves, metrics, pictures with sentences, searches.

    Example: `limner report runs/mrnn --out report.html`
    """
    from limner.report import write_report

    path = write_report(run, to or run / "report.html")
    print_json({"report": str(path)}) if as_json else typer.echo(str(path))


@app.command()
def demo(
    to: Annotated[Path, typer.Option("--out", help="Folder for the collection and the run.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of the drawings and of the training.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Draw a collection, learn to describe it from its pixels, measure, and write a report: three minutes.

    Example: `limner demo --out demo`
    """
    from limner.demo import run_demo

    with progress_bars() as progress:
        result = run_demo(to, seed=seed, command=_command(), progress=progress)
    if as_json:
        scores = [score._asdict() for score in result.evaluation.scores]
        print_json(
            {
                "report": str(result.report),
                "run": str(result.run),
                "seconds": result.seconds,
                "scores": scores,
            }
        )
        return
    print_scores(result.evaluation.scores, {}, "")
    for item in result.evaluation.items[:5]:
        typer.echo(f"  {Path(str(item.image)).name}: {item.hypothesis}")
    typer.echo(f"{result.seconds:.0f} s of work; the report: {result.report}")


def _command() -> str:
    return shlex.join(["limner", *sys.argv[1:]])


def _given(**values: Any) -> dict[str, Any]:  # noqa: ANN401
    return {key: value for key, value in values.items() if value is not None}


def _pictures(paths: Sequence[Path]) -> list[Path]:
    """Files as they are, folders as the pictures in them."""
    from limner.vision.images import PICTURE_SUFFIXES

    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURE_SUFFIXES)
            if not inside:
                raise SettingsError(f"{path}: no pictures in this folder ({', '.join(sorted(PICTURE_SUFFIXES))})")
            files += inside
        else:
            files.append(path)
    return files
