"""The commands for scores of sentences, labels, correlations with human judgements, and distances of words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limner.apps.cli import options
from limner.apps.cli.app import MEASURE, USE
from limner.apps.cli.inputs import STANDARD_INPUT, read_lines
from limner.apps.cli.terminal import activity, echo, print_error, print_json, progress_bar, progress_bars, tab_separated
from limner.bounds import BootstrapSamples, Count, Seed
from limner.errors import LimnerError, SettingsError, counted
from limner.hub.settings import HubSettings
from limner.runs.pretrained import DEFAULT_LANG, local_folder, model_type, results_folder

if TYPE_CHECKING:
    from limner.evaluation.correlate import JudgedCorrelation, Judgements, PairScores
    from limner.inference.classifier import Classification
    from limner.progress import StageProgress


@options.command(USE)
def score(
    image: Path,
    sentences: list[str],
    *,
    model: options.CaptionerOption = None,
    lang: str | None = None,
    backbone: str | None = None,
    collection: Path | None = None,
    hub: Annotated[dict[str, Any], HubSettings, "prompt", "dtype"],
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Compute the log-probability and the perplexity of sentences given an image, or their score in a joint space.

    With --collection, the score without references log P(w|I) - log P(w) too: how much more probable the image makes
    the sentence, and each of its tokens.

    Example: `limner score photo.jpg "A dog runs ." "A cat sleeps ."`

    Options:
        image: Image file; an audio file for an audio model.
        sentences (SENTENCE...): Sentences to score.
        collection (DIR): Collection whose training images give log P(w), for the score log P(w|I) - log P(w).
    """
    run = options.require_one_model(options.models_or_pretrained(model, lang, hub), "score")
    is_hub = model_type(run) is not None
    if is_hub:
        options.refuse(
            {"backbone": backbone, "collection": collection}, f"needs a run, and {run} is none; leave it out"
        )
    else:
        options.check_runs([run], device, backbone=backbone)
    from limner.data.collection import Collection
    from limner.inference.load import load_hub
    from limner.inference.scorer import Scorer
    from limner.media.modality import modality_of

    opened = None if collection is None else Collection.open(collection)
    modality_of(image).open(image)  # an unreadable image is found before the model is loaded
    with activity("loading the model"):
        if is_hub:
            scorer = load_hub(run, tasks=("describe", "match"), device=device, **hub)
        else:
            scorer = Scorer.load(run, backbone=backbone, device=device)
    with progress_bar("scoring") as bar:
        scores = scorer.score(image, sentences, on_progress=bar)
    ratios = None
    if opened is not None and isinstance(scorer, Scorer):
        with progress_bar("estimating log P(w)") as bar:
            ratios = scorer.log_ratios(image, sentences, opened, on_progress=bar)
    pairs: list[tuple[str, Any]] = list(zip(sentences, scores, strict=True))
    records = [{"sentence": text, **result._asdict()} for text, result in pairs]
    if ratios is not None:
        for record, value, tokens in zip(records, ratios.values, ratios.tokens, strict=True):
            record |= {"log_ratio": value, "token_log_ratios": tokens, "signature": ratios.signature}
    if as_json:
        return print_json(records)
    from limner.metrics.base import format_value

    names = [name for name in ("score", "clip_score", "log_prob", "perplexity", "log_ratio") if name in records[0]]
    echo(tab_separated(*(name.replace("_", "-") for name in names), "sentence"))
    for record in records:
        values = [format_value(record[name]) if name == "perplexity" else f"{record[name]:.2f}" for name in names]
        echo(tab_separated(*values, record["sentence"]))
    if ratios is not None:
        for tokens in ratios.tokens:
            echo("log-ratios: " + "  ".join(f"{token} {value:+.2f}" for token, value in tokens))
        echo(f"log-ratio: [{ratios.signature}]")


@options.command(MEASURE)
def correlate(
    judgements: Path,
    *,
    scores: Path | None = None,
    model: Path | None = None,
    metric: Literal["caption_score", "ref_caption_score"] | None = None,
    collection: Path | None = None,
    marginal: Count | None = None,
    samples: BootstrapSamples | None = None,
    seed: Seed | None = None,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Correlate a score with human judgements of captions: Kendall's tau-b and tau-c.

    The score is computed by the built-in models (--metric), by a captioning model or a joint space, or read.

    Example: `limner correlate ExpertAnnotations.txt --metric caption_score --collection collections/flickr8k`

    Options:
        judgements (JUDGEMENTS): File in the form of Flickr8k-Expert (image, caption, three ratings) or Flickr8k-CF
            (image, caption, share of yes, numbers of yes and no), separated by tabs.
        scores (FILE): Scores of any metric, lines of image, caption and score, separated by tabs.
        model (RUN): Captioning model that scores the pairs by log P(w|I) - log P(w), of the hub by log P(w|I); or a
            joint space of the hub, such as hub:openai/clip-vit-base-patch32, that scores them by CLIPScore.
        metric: Score by the built-in models and the training captions of the collection, without references or
            with the other captions of the image; English captions.
        collection (DIR): Collection with the images, captions and features for --model or --metric.
        marginal: Training images sampled to estimate P(w); default: 1000.
        samples: Number of bootstrap samples of the images; default: 1000.
        seed: Random seed of the bootstrap; default: 1.
    """
    if scores is not None:
        of_model = {"--model": model, "--metric": metric, "--collection": collection, "--marginal": marginal}
        options.refuse(of_model, "not possible with --scores; leave out one or the other")
    elif collection is None or (model is None) == (metric is None):
        raise SettingsError(
            "expected --scores FILE, or --collection DIR with --metric or --model RUN; give one of them"
        )
    if metric is not None:
        options.refuse({"--marginal": marginal}, "has an effect only with --model; leave it out")
    from limner.evaluation.correlate import correlate_with_judgements, read_judgements, read_scores

    judged = read_judgements(judgements)
    missing, signature = 0, ""
    with progress_bars() as progress:
        if scores is not None:
            values = read_scores(scores, judged)
        elif collection is not None:
            scored = _score_pairs(judged, collection, model, metric, marginal, device, progress)
            values, missing, signature = scored.scores, len(scored.missing), scored.signature
        result = correlate_with_judgements(
            judged, values, on_progress=progress, **options.without_none(samples=samples, seed=seed)
        )
    _print_correlations(result, missing, signature, as_json)


def _score_pairs(
    judged: Judgements,
    collection: Path,
    model: Path | None,
    metric: Literal["caption_score", "ref_caption_score"] | None,
    marginal: int | None,
    device: str,
    progress: StageProgress,
) -> PairScores:
    """Score judged pairs by the built-in models, a model of the hub or a run."""
    from limner.data.collection import Collection

    opened = Collection.open(collection)
    if model is None:
        from limner.evaluation.caption_score import score_judged_captions

        return score_judged_captions(
            opened, judged, metric or "caption_score", split="train", lang=DEFAULT_LANG, on_progress=progress
        )
    folder = Path(local_folder(model))
    if model_type(folder) is not None:
        options.refuse({"--marginal": marginal}, f"has an effect only on a run, which {folder} is not; leave it out")
        from limner.evaluation.hub import score_pairs_of_hub

        return score_pairs_of_hub(folder, results_folder(model).name, opened, judged, device, on_progress=progress)
    from limner.evaluation.correlate import score_judged_pairs

    options.check_runs([folder], device)
    (trained,) = options.load_runs([folder], device)
    return score_judged_pairs(trained, opened, judged, on_progress=progress, **options.without_none(marginal=marginal))


def _print_correlations(result: JudgedCorrelation, missing: int, signature: str, as_json: bool) -> None:
    if as_json:
        rows = [correlation._asdict() for correlation in result.correlations]
        counts = {"pairs": result.pairs, "images": result.images, "own_captions": result.own_captions}
        signatures = {"signature": result.signature, "score": signature or None}
        return print_json({"correlations": rows, **counts, "missing": missing, "notes": result.notes, **signatures})
    for name, value, interval, *_ in result.correlations:
        bounds = "" if interval is None else "  95 % interval [{:.4f}, {:.4f}]".format(*interval)
        echo(f"{name} = {value:.4f}{bounds}")
    for note in result.notes:
        echo(f"note: {note}")
    echo(f"{counted(result.pairs, 'pair')} of {counted(result.images, 'image')}")
    if result.own_captions:
        echo(f"left out: {counted(result.own_captions, 'pair')} whose caption was written for the image")
    if missing:
        echo(f"left out: {counted(missing, 'pair')} whose caption or image with features is not in the collection")
    echo(f"[{result.signature}]")
    if signature:
        echo(f"score: [{signature}]")


@options.command(MEASURE)
def words(word: str, *, model: options.ModelOption = None, count: Count = 10, as_json: bool = False) -> None:
    """Show the words with the nearest embeddings, by Euclidean distance.

    Example: `limner words dog --model runs/mrnn`

    Options:
        word: A word of the model's vocabulary.
        count: Number of words to show.
    """
    run = options.require_one_model(model, "words")
    from limner.inference.scorer import nearest_words

    neighbours = nearest_words(options.load_runs([run], "cpu")[0], word, count)
    if as_json:
        return print_json([{"word": neighbour, "distance": distance} for neighbour, distance in neighbours])
    for neighbour, distance in neighbours:
        echo(tab_separated(f"{distance:.3f}", neighbour))


@options.command(USE)
def classify(
    inputs: list[str] | None = None,
    *,
    model: options.ModelsOption = None,
    file: Path | None = None,
    n_best: Count = 1,
    backbone: str | None = None,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Label sentences, clips or sounds with a model of labels, and print the probabilities.

    A model with one label of each step prints one line for each token or frame, with its number from 0. A model of
    positions prints the expected position in percent of the width and the height of the frame. A terminal shows a
    header. An input that cannot be read is reported; the others are labelled, and the exit status is 1.

    Example: `limner classify "a gripping film" --model runs/sentiment --n-best 2`

    Options:
        inputs ([INPUT...]): Sentences; for a model of clips, sounds or images, files.
        file (FILE): Text file with one input per line; - is standard input.
        n_best: Labels to print for each input or step.
    """
    runs, texts = options.require_models(model), _read_inputs(inputs or [], file)
    options.check_runs(runs, device, backbone=backbone)
    from limner.inference.classifier import Classifier

    with activity("loading the model"):
        classifier = Classifier.load(*runs, backbone=backbone, device=device)
    steps = classifier.has_step_labels
    records: list[dict[str, Any]] = []
    unreadable = 0
    if not as_json and sys.stdout.isatty():
        values = ["x, % of width", "y, % of height"] if classifier.predicts_positions else ["label", "probability"]
        echo(tab_separated("input", *(["step"] if steps else []), *values))
    for number, (text, labels) in enumerate(zip(texts, classifier.classify_each(texts), strict=True), 1):
        if isinstance(labels, LimnerError):
            unreadable += 1
            print_error(f"{_origin(file)}, line {number}: {labels}" if file is not None else labels)
        elif as_json:
            records.append(_record(text, labels, n_best, steps=steps))
        else:
            for line in _lines(labels, n_best, steps=steps):
                echo(tab_separated(text, *line))
    if as_json:
        print_json(records)
    if unreadable:
        raise typer.Exit(1)


def _read_inputs(arguments: list[str], file: Path | None) -> list[str]:
    """Return the inputs of the command line or of a text file; SettingsError for no inputs, or for both."""
    if file is None:
        if not arguments:
            raise SettingsError("nothing to classify: give sentences or files, or a text file (--file)")
        return arguments
    if arguments:
        raise SettingsError(f"inputs and --file {file}: give one or the other")
    lines = read_lines(file)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise SettingsError(f"{_origin(file)}: the file is empty; write one sentence or file on each line")
    return lines


def _origin(file: Path) -> str:
    return "standard input" if file == STANDARD_INPUT else str(file)


def _lines(labels: Classification, n_best: int, *, steps: bool) -> Iterator[tuple[str, ...]]:
    """Yield the fields of each line of an input: step (if every step has a label), position or label, probability."""
    for number, step in enumerate(labels.steps):
        start = (str(number),) if steps else ()
        if step.position is not None:
            yield *start, *(f"{100 * share:.2f}" for share in step.position)
            continue
        for label, probability in step.labels[:n_best]:
            yield *start, label, f"{probability:.4f}"


def _record(text: str, labels: Classification, n_best: int, *, steps: bool) -> dict[str, Any]:
    values: list[dict[str, Any]] = []
    for step in labels.steps:
        best = [label._asdict() for label in step.labels[:n_best]]
        position = {} if step.position is None else {"position": step.position}
        values.append({"label": step.label, "probability": step.probability, "labels": best, **position})
    return {"input": text, **({"steps": values} if steps else values[0])}
