"""Commands that run whole experiments, from data to report: demo, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limner.apps.cli.app import MORE, command_line
from limner.apps.cli.options import command, given, refuse
from limner.apps.cli.terminal import echo, err, main_scores, print_json, print_scores, progress_bars
from limner.bounds import Few, PositiveShare, Seed
from limner.errors import SettingsError
from limner.storage.outputs import claim_folder

if TYPE_CHECKING:
    from limner.apps.cli.demo import DemoResult


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
    from limner.apps.cli.demo import Demo, run_demo

    with progress_bars() as progress:
        stages = Demo(out, seed, command_line(), progress)
        result = run_demo(stages, lambda line: err.print(line, highlight=False, soft_wrap=True))
    if not as_json:
        _print_demo(result)
        return
    print_json(
        {
            "report": str(result.report),
            "run": str(result.run),
            "seconds": result.seconds,
            "scores": [score._asdict() for score in result.evaluation.scores],
            "translation": str(result.translation),
            "translation_report": str(result.translation_report),
            "translation_scores": [score._asdict() for score in result.translations.scores],
            "diagnosis": result.diagnosis.model_dump(),
        }
    )


def _print_demo(result: DemoResult) -> None:
    from limner.apps.cli.demo import next_steps

    print_scores(main_scores(result.evaluation.scores, translates=False), {}, "", signatures=False)
    for item in result.evaluation.items[:5]:
        echo(f"  {Path(str(item.image)).name}: {item.hypothesis}")
    print_scores(main_scores(result.translations.scores, translates=True), {}, "", signatures=False)
    for item in {item.id: item for item in result.translations.items[:25]}.values():  # one sentence per image
        echo(f"  {Path(str(item.image)).name}: {item.source} -> {item.hypothesis}")
    echo(result.diagnosis.verdict)
    if (ambiguity := result.diagnosis.ambiguity) is not None:
        names = {"right": "the right image", "swapped": "an image of the other sense", "none": "no image"}
        accuracies = [f"{part.scores[0].value:.0f} % with {names[part.name]}" for part in ambiguity.conditions]
        echo(f"ambiguous words translated correctly: {', '.join(accuracies)} (chance: {ambiguity.chance:.0f} %)")
    echo(f"{result.seconds:.0f} s of work; reports: {result.report}, {result.translation_report}")
    echo("\n".join(["What to try next:", *(f"  {line}" for line in next_steps(result))]))


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
        corpus (DIR): Collection of sentence pairs, such as those of WMT'15, for the rows that train with another
            corpus; default: these rows are left out.
        budget: Share of the recipes' epochs and samples to use, above 0, at most 1; default: 1.
        list_: List the tables: the data, and the published scores of every row.
    """
    data = {"KEY=VALUE": changes, "--collection": collection, "--out": out, "--dataset": dataset, "--row": row}
    runs = {"--recipes": recipes, "--init": init, "--back-translator": back_translator, "--corpus": corpus}
    of_training = {**data, **runs, "--seeds": seeds, "--budget": budget}
    if list_:
        refuse(of_training, "--list only lists; leave one of them out")
    from limner.apps.reproduce import ReproductionSettings, find_table, reproduce_table
    from limner.apps.reproduce.render import (
        list_tables,
        listing_text,
        open_collection,
        properties_plain,
        properties_text,
    )
    from limner.apps.reproduce.tables import property_tables

    if list_:
        listing = list_tables(table)
        print_json(listing) if as_json else echo(listing_text(listing))
        return
    if (properties := property_tables().get(table or "")) is not None:
        refuse(of_training, f"{table} has properties of recipes, and nothing is trained; leave it out")
        print_json(properties_plain(properties)) if as_json else echo(properties_text(properties))
        return
    if table is None or out is None:
        expected = "the name of a table, such as mao2015/table3" if table is None else "--out, the folder of the rows"
        raise SettingsError(f"expected {expected}; 'limner reproduce --list' lists the tables")
    claim_folder(out, "--out", records={"table.md": "rows", "table.json": "rows"})
    published = find_table(table)
    opened = open_collection(published, collection)
    values = given(rows=row, seeds=seeds, dataset=dataset, recipes=recipes, overrides=changes, init=init, budget=budget)
    values |= given(back_translator=back_translator, corpus=corpus)
    settings = ReproductionSettings.parse(values)
    with progress_bars() as progress:
        reproduction = reproduce_table(
            published, opened, out, settings=settings, command=command_line(), on_progress=progress
        )
    if as_json:
        echo(reproduction.json.read_text(encoding="utf-8"))
        return
    echo(reproduction.markdown.read_text(encoding="utf-8"))
    echo(", ".join(str(path) for path in (reproduction.markdown, reproduction.json, *reproduction.figures)))
