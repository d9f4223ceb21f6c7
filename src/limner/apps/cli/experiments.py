"""Commands that run whole experiments, from data to report: demo, reproduce."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.apps.cli.app import MORE, command_line
from limner.apps.cli.options import command, refuse, without_none
from limner.apps.cli.terminal import ShowProgress, echo, err, main_scores, print_json, print_scores, progress_bars
from limner.bounds import Few, PositiveShare, Seed
from limner.errors import SettingsError
from limner.storage.outputs import claim_folder

if TYPE_CHECKING:
    from limner.evaluation.measurements import Diagnosis
    from limner.runs.evaluations import Evaluation
    from limner.training.context import TrainProgress

METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "chrf")  # metrics that need no extra
TRANSLATION_METRICS = ("bleu4", "chrf3", "ter")
PIXELS = "pixels:64"
"""Backbone of both models of the demo: the pixels themselves, 64 x 64."""
TRAINING_SCENES = 8000


@command(MORE)
def demo(*, out: Path = Path("demo"), seed: Seed = 1, as_json: bool = False) -> None:
    """Generate a collection, train a captioner and a translator from pixels, evaluate them and write reports.

    An interrupted demo continues where it stopped.

    Example: `limner demo --out demo`

    Options:
        out (DIR): Folder for the collections, the runs and the reports.
        seed: Random seed of the drawings and of the training.
    """
    claim_folder(out, "--out", records={"report.html": "run", "translation.html": "translation"})
    began = time.perf_counter()
    with progress_bars() as progress:
        captions, translations, diagnosis = _run_demo(out, seed, progress)
    seconds = time.perf_counter() - began
    run, translation = out / "run", out / "translation"
    report, translation_report = out / "report.html", out / "translation.html"
    if as_json:
        paths = {"report": report, "run": run, "translation": translation, "translation_report": translation_report}
        facts: dict[str, Any] = {name: str(path) for name, path in paths.items()}
        facts["scores"] = [score._asdict() for score in captions.scores]
        facts["translation_scores"] = [score._asdict() for score in translations.scores]
        return print_json(facts | {"seconds": seconds, "diagnosis": diagnosis.model_dump()})
    print_scores(main_scores(captions.scores, translates=False), {}, "", signatures=False)
    for item in captions.items[:5]:
        echo(f"  {Path(str(item.image)).name}: {item.hypothesis}")
    print_scores(main_scores(translations.scores, translates=True), {}, "", signatures=False)
    for item in {item.id: item for item in translations.items[:25]}.values():  # one sentence per image
        echo(f"  {Path(str(item.image)).name}: {item.source} -> {item.hypothesis}")
    echo(diagnosis.verdict)
    if (ambiguity := diagnosis.ambiguity) is not None:
        names = {"right": "the right image", "swapped": "an image of the other sense", "none": "no image"}
        accuracies = [f"{part.scores[0].value:.0f} % with {names[part.name]}" for part in ambiguity.conditions]
        echo(f"ambiguous words translated correctly: {', '.join(accuracies)} (chance: {ambiguity.chance:.0f} %)")
    echo(f"{seconds:.0f} s of work; reports: {report}, {translation_report}")
    images, item = out / "scenes" / "images", next(item for item in translations.items if item.source)
    search = f"--model {run} --collection {out / 'scenes'} --split test"
    echo("What to try next:")
    echo(f"  limner describe {images / 'test-00000.jpg'} --model {run} --beam-size 5 --n-best 3")
    echo(f'  limner search "a purple seal in the meadow" {search}')
    echo(f'  limner translate "{item.source}" --model {translation} --image {images / Path(item.image or "").name}')


def _run_demo(folder: Path, seed: int, on_progress: ShowProgress) -> tuple[Evaluation, Evaluation, Diagnosis]:
    """Draw scenes, train a captioner and a translator on them, evaluate both on held-out scenes and write reports."""
    from limner.apps.diagnosis import DiagnosisSettings, diagnose
    from limner.apps.report.page import write_report
    from limner.evaluation.evaluate import EvaluationOptions, evaluate
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract
    from limner.runs.evaluations import save_evaluation
    from limner.runs.recipe import load_recipe
    from limner.runs.trained_model import load_trained_model
    from limner.synthetic.scenes import SceneSettings
    from limner.synthetic.storage import generate_collection
    from limner.training.loop import train

    def log(line: str) -> None:
        err.print(line, highlight=False, soft_wrap=True)

    def train_recipe(recipe: str, name: str, *changes: str) -> Path:
        run, chosen = folder / name, load_recipe(recipe, [f"training.seed={seed}", *changes])

        def show(progress: TrainProgress) -> None:
            on_progress(f"training {recipe}", progress.state.step, progress.total_steps)

        return train(chosen, scenes, run, resume=run.exists(), command=command_line(), on_progress=show)

    def evaluate_run(run: Path, metrics: tuple[str, ...]) -> Evaluation:
        options, models = EvaluationOptions(metrics=metrics), [load_trained_model(run)]
        evaluation = evaluate(models, scenes, options=options, command=command_line(), on_progress=on_progress)
        save_evaluation(evaluation, run)
        return evaluation

    log(f"1/6 Drawing {TRAINING_SCENES:,} training scenes with captions in three languages; nothing is downloaded.")
    drawn = SceneSettings(train=TRAINING_SCENES, size=96, ambiguous=1.0, max_objects=1, seed=seed)
    scenes = generate_collection(folder / "scenes", drawn, partial(on_progress, "drawing"))
    extract(scenes, load_backbone(PIXELS), on_progress=partial(on_progress, "reading pixels"))
    log("2/6 Training the captioner (m-RNN). It learns to see from pixels alone, by predicting captions.")
    run = train_recipe("scenes/demo-caption", "run")
    log("3/6 Evaluating captions and retrieval on 200 held-out scenes.")
    captions = evaluate_run(run, METRICS)
    write_report(run, folder / "report.html")
    log(
        "4/6 Training the English-German translator (NMT_SRC+IMG). English 'bat' is an animal or a club; German has a "
        "word for each, and only the image decides."
    )
    encoder = f"training.pretrained_image_encoder={run}"
    translation = train_recipe("scenes/demo-translate", "translation", encoder)
    log("5/6 Evaluating translations of 1,000 held-out sentences, each with an ambiguous word.")
    translations = evaluate_run(translation, TRANSLATION_METRICS)
    log("6/6 Translating them again with shuffled, swapped and no images: does the model use the image?")
    settings, model = DiagnosisSettings(metrics=("bleu4",), trials=1000, seed=seed), load_trained_model(translation)
    diagnosis = diagnose(model, scenes, settings=settings, command=command_line(), on_progress=on_progress)
    diagnosis.save_in(translation)
    write_report(translation, folder / "translation.html")
    return captions, translations, diagnosis


@command(MORE)
def reproduce(
    table: str | None = None,
    changes: list[str] | None = None,
    *,
    collection: Path | None = None,
    out: Path | None = None,
    dataset: str | None = None,
    recipes: str | None = None,
    row: list[str] | None = None,
    seeds: Few | None = None,
    init: Path | None = None,
    back_translator: Path | None = None,
    corpus: Path | None = None,
    budget: PositiveShare | None = None,
    list_: bool = False,
    as_json: bool = False,
) -> None:
    """Train and evaluate the rows of a published table, and print them beside the published values.

    `limner reproduce --list` lists the tables. Rows are marked where they are significantly better than their
    baselines. An interrupted command continues where it stopped.

    Example: `limner reproduce kiros2014/table1 --collection collections/flickr8k --out runs/table1 --budget 0.1`

    Options:
        table: Published table, such as mao2015/table3; --list shows all.
        changes ([KEY=VALUE]...): Settings to change in the recipe of every row.
        out (DIR): Folder for the runs, the rows and the table.
        dataset: Data set whose rows and scores are used: iapr, flickr8k, flickr30k, coco or visual-genome; default:
            recognised by the file names of the images.
        recipes: Folder of recipes to use, such as calixto2017/small; default: the table's.
        row: Row to train; default: all. Repeatable.
        seeds: Number of training seeds per row; the table shows the means; default: 1.
        init (RUN): Start every row from the weights and vocabularies of this run.
        back_translator (RUN): Run of the opposite direction, which generates source sentences for the rows that train
            with them; default: the table's recipe, which is trained first.
        corpus (DIR): Collection of sentence pairs, such as WMT'15, for the rows that train with another corpus;
            default: these rows are left out.
        budget: Share of the recipes' epochs and samples to use, above 0, at most 1; default: 1.
        list_: List the tables: the data, and the published scores of every row.
    """
    data = {"KEY=VALUE": changes, "--collection": collection, "--out": out, "--dataset": dataset, "--row": row}
    runs = {"--recipes": recipes, "--init": init, "--back-translator": back_translator, "--corpus": corpus}
    of_training = {**data, **runs, "--seeds": seeds, "--budget": budget}
    if list_:
        refuse(of_training, "--list only lists; leave one of them out")
    from limner.apps.reproduce import ReproductionSettings, find_table, render, reproduce_table
    from limner.apps.reproduce.tables import property_tables

    if list_:
        listing = render.list_tables(table)
        return print_json(listing) if as_json else echo(render.listing_text(listing))
    if (properties := property_tables().get(table or "")) is not None:
        refuse(of_training, f"{table} has properties of recipes, and nothing is trained; leave it out")
        return print_json(render.properties_plain(properties)) if as_json else echo(render.properties_text(properties))
    if table is None or out is None:
        expected = "the name of a table, such as mao2015/table3" if table is None else "--out, the folder of the rows"
        raise SettingsError(f"expected {expected}; 'limner reproduce --list' lists the tables")
    claim_folder(out, "--out", records={"table.md": "rows", "table.json": "rows"})
    published = find_table(table)
    opened = render.open_collection(published, collection)
    values = without_none(rows=row, seeds=seeds, dataset=dataset, recipes=recipes, overrides=changes, init=init)
    values |= without_none(back_translator=back_translator, corpus=corpus, budget=budget)
    settings = ReproductionSettings.parse(values)
    with progress_bars() as progress:
        reproduction = reproduce_table(
            published, opened, out, settings=settings, command=command_line(), on_progress=progress
        )
    if as_json:
        return echo(reproduction.json.read_text(encoding="utf-8"))
    echo(reproduction.markdown.read_text(encoding="utf-8"))
    echo(", ".join(str(path) for path in (reproduction.markdown, reproduction.json, *reproduction.figures)))
