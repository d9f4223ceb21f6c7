"""Published tables and figures, data files beside the recipes (`recipes/PAPER/tables.yaml`), and their data sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from limner.bounds import FewOrNone, Level, Measured, PositiveWeight
from limner.data.collection import Collection
from limner.errors import SettingsError, did_you_mean
from limner.evaluation.comparison import DAGGERS
from limner.inference.features import ImageControl
from limner.metrics import METRICS
from limner.metrics.base import format_value
from limner.runs.recipe import TABLES_FILE, recipe_folder
from limner.settings import Settings, read_yaml

PAPERS = ("kiros2014", "mao2015", "vinyals2015", "xu2015", "calixto2016", "calixto2017", "johnson2016", "lecture")
"""Folders of recipes with published tables."""

CorpusUse = Literal["pretraining", "pairs", "sentences"]
"""Use of the sentence pairs of another collection by a row: for its preceding training stages, as further training
pairs, or as further target sentences of the language model."""

RECOGNISED_SHARE = 0.9
"""Minimum share of the items whose ids have the form of a data set."""


class DataSet(NamedTuple):
    """A data set that rows of a table are trained on."""

    name: str
    """Name as printed in the paper."""
    key: str
    """Name in options and tables, and in the names of recipes in place of '{dataset}'."""
    ids: str
    """Regular expression of the item ids, the file names of the images without folders and suffix."""
    command: str
    has_plain_numbers: bool = False
    """Whether the ids are plain numbers, which other collections have too, so that only items with images are
    recognised."""


DATA_SETS = (
    DataSet("Flickr8k", "flickr8k", r"\d+_[0-9a-f]{10}", "flickr SOURCE COLLECTION"),
    DataSet("Flickr30k", "flickr30k", r"\d{8,10}", "karpathy dataset_flickr30k.json COLLECTION"),
    DataSet("MS COCO", "coco", r"(COCO_[a-z]+\d{4}_)?\d{12}", "karpathy dataset_coco.json COLLECTION"),
    DataSet("IAPR TC-12", "iapr", r"\d{1,5}", "iapr SOURCE COLLECTION", True),
    DataSet("Visual Genome", "visual-genome", r"\d{1,7}", "visual-genome SOURCE COLLECTION", True),
)
"""All data sets; a form of ids comes after the narrower forms that it contains."""


def recognise(collection: Collection) -> DataSet | None:
    """Return the data set of a collection by the form of its item ids; None for another data set."""
    items = [(item.id, item.image is not None) for item in collection.items()]
    return recognise_ids([id_ for id_, _ in items], any(has_image for _, has_image in items))


def recognise_ids(ids: Sequence[str], have_images: bool) -> DataSet | None:
    """Return the data set whose form at least `RECOGNISED_SHARE` of the ids have."""
    for dataset in DATA_SETS:
        if dataset.has_plain_numbers and not have_images:
            continue
        matching = sum(re.fullmatch(dataset.ids, id_) is not None for id_ in ids)
        if ids and matching >= RECOGNISED_SHARE * len(ids):
            return dataset
    return None


class TableColumn(Settings):
    """A column of a published table."""

    score: str
    """Name of the score in an evaluation."""
    label: str
    """Heading of the column."""
    digits: FewOrNone
    """Number of decimal places."""
    scale: PositiveWeight = 1.0
    """Factor from our scale to the scale of the paper."""

    def format(self, value: float | None) -> str:
        """Write a score on the scale of the paper, with the digits of the column; '–' if there is none."""
        return "–" if value is None else format_value(value * self.scale, self.digits)


class PublishedRow(Settings):
    """A row of a published table."""

    name: str
    """Name of the system as printed in the paper."""
    recipe: str | None = None
    """Name of the recipe in the table's recipe folder, where '{dataset}' is replaced by the key of the data set; None
    for a system that Limner does not implement, which is shown with its published scores only."""
    image_control: ImageControl = "right"
    """Image control of the evaluation."""
    alternatives: tuple[tuple[str, ...], ...] = ((),)
    """Alternative recipe overrides KEY=VALUE; the alternative with the lowest validation perplexity is evaluated."""
    published: Mapping[str, Mapping[str, Measured]] = {}
    """Published scores on our scale, by data set and score name. In a data file, a text of the scores of a data set as
    printed, in the order of the columns: '-' where there is none, † and ‡ after a score."""
    published_marks: Mapping[str, Mapping[str, str]] = {}
    """Published significance marks († ‡), by data set and score name."""
    pretraining: tuple[str, ...] = ()
    """Recipes of preceding training stages in the same folder; each stage is initialised from the previous one."""
    baselines: tuple[str, ...] = ()
    """Rows that this row is compared with: † marks a significant improvement over the first, ‡ over the second. A row
    that is a baseline itself is compared with the other baseline only."""
    level: Level = 0.05
    """Significance level."""
    changes: tuple[str, ...] = ()
    """Recipe changes KEY=VALUE of all alternatives; they are part of the name of the run directory."""
    evaluation: tuple[str, ...] = ()
    """Changes KEY=VALUE of `decoding` and `evaluation` after training. Rows that differ only in these settings share a
    run."""
    features: tuple[str, ...] = ()
    """Feature tables of the paper's backbone. The row reads the first table that the collection has, or else the tables
    of its recipe. Empty for the tables of the recipe."""
    corpus: CorpusUse | None = None
    """Use of the sentence pairs of another collection; None for a row that trains on the table's collection alone."""
    other_authors: bool = False
    """Whether the paper cites the system from other authors."""

    def published_cell(self, dataset: str, column: TableColumn) -> str:
        """Return a published score with the digits of its column and its significance marks; '–' if there is none."""
        mark = self.published_marks.get(dataset, {}).get(column.score, "")
        return column.format(self.published.get(dataset, {}).get(column.score)) + mark


def _data_set(key: Any) -> Any:  # noqa: ANN401  (arbitrary YAML)
    datasets = {dataset.key: dataset for dataset in DATA_SETS}
    if isinstance(key, str) and key not in datasets:
        raise ValueError(f"expected a data set, one of {', '.join(datasets)}")
    return datasets[key] if isinstance(key, str) else key


class PublishedTable(Settings):
    """A table of a paper."""

    name: str
    """Name of the table, 'paper/table'."""
    title: str
    recipes: str
    """Folder of the table's recipes."""
    columns: tuple[TableColumn, ...]
    datasets: tuple[str, ...] = ()
    """Data sets that the paper reports scores for."""
    trained_on: tuple[Annotated[DataSet, BeforeValidator(_data_set)], ...] = ()
    """Data sets that the rows can be trained on, beginning with `datasets`; empty if the rows have the same recipe for
    any collection. In a data file, their keys."""
    retrieval: bool = True
    """Whether image-text retrieval is evaluated, which is slow for models without a faster all-pairs scoring."""
    gradients: bool = False
    """Whether gradients through time are measured on the validation split."""
    reverse: str | None = None
    """Recipe of the opposite direction, in the same folder, which translates descriptions for rows that train with
    generated source sentences."""
    rows: tuple[PublishedRow, ...]
    notes: str
    """Paragraph printed below the table."""

    @model_validator(mode="before")
    @classmethod
    def _read_printed_scores(cls, values: Any) -> Any:  # noqa: ANN401  (arbitrary YAML)
        """Read published scores that are texts."""
        try:
            columns = [TableColumn.model_validate(column) for column in values["columns"]]
            rows = [_with_scores(row, columns) if isinstance(row, dict) else row for row in values["rows"]]
        except (KeyError, TypeError, ValidationError):
            return values  # the errors of columns and rows name their keys
        return {**values, "columns": columns, "rows": rows}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the columns that are sentence metrics."""
        return tuple(column.score for column in self.columns if column.score in METRICS)

    @property
    def published_columns(self) -> list[TableColumn]:
        """Columns with a published score."""
        scores = {score for row in self.rows for values in row.published.values() for score in values}
        return [column for column in self.columns if column.score in scores]

    @property
    def has_normalised_retrieval(self) -> bool:
        """Whether a column is a score of image-to-text retrieval among all sentences, Mao et al. (2015), eq. 7."""
        return any(re.fullmatch(r"image_to_text_(r\d+|median_rank)", column.score) for column in self.columns)

    def for_dataset(self, dataset: DataSet) -> PublishedTable:
        """Return the part of the table about one data set: its rows with the recipes for it, and its scores.

        The part keeps scores on data sets that no row can be trained on. Rows without scores on the data set are left
        out, unless they have none at all. For a data set without scores, all rows and published scores are returned.
        """
        is_other_data = not any(dataset.name in row.published for row in self.rows)
        hidden = set() if is_other_data else {data_set.name for data_set in self.trained_on} - {dataset.name}
        shown = [row for row in self.rows if is_other_data or dataset.name in row.published or not row.published]
        names = {row.name for row in shown}
        rows = []
        for row in shown:
            baselines = tuple(baseline for baseline in row.baselines if baseline in names)
            recipe = row.recipe and row.recipe.format(dataset=dataset.key)
            stages = tuple(stage.format(dataset=dataset.key) for stage in row.pretraining)
            rows.append(row.model_copy(update={"recipe": recipe, "pretraining": stages, "baselines": baselines}))
        datasets = tuple(name for name in self.datasets if name not in hidden)
        return self.model_copy(update={"rows": tuple(rows), "datasets": datasets, "trained_on": (dataset,)})

    def data_set(self, key: str) -> DataSet:
        """Return one of the data sets by its key; SettingsError if the table has no scores on it."""
        for dataset in self.trained_on:
            if dataset.key == key:
                return dataset
        known = ", ".join(dataset.key for dataset in self.trained_on)
        expected = f"expected one of {known}" if known else "its rows are the same for every collection; leave it out"
        raise SettingsError(f"data set '{key}' of {self.name}: {expected}")


class PropertyRow(Settings):
    """A system with its published properties."""

    name: str
    """Name as printed in the paper."""
    published: tuple[str, ...]
    """Properties as printed, one for each column."""
    recipe: str | None = None
    """Recipe of the system; None if Limner has none."""
    other_authors: bool = False
    """Whether the paper cites the system from other authors."""


class PropertyTable(Settings):
    """A published table of properties of recurrent layers, which needs no training: Table 6 of Mao et al. (2015)."""

    name: str
    """Name of the table, 'paper/table'."""
    title: str
    columns: tuple[str, str]
    """Headings: the size of the recurrent layer, and whether it is an LSTM."""
    rows: tuple[PropertyRow, ...]
    notes: str
    """Paragraph printed below the table."""


class PublishedFigure(Settings):
    """A figure or a set of examples of a paper, and the commands that make it."""

    number: str
    """Number or name of the figure in the paper."""
    title: str
    commands: tuple[str, ...] = ()
    """Commands with the placeholders C, the folder of a collection, and RUN, a run of the table; empty if nothing is
    computed."""
    note: str = ""
    """Results of the commands, or the reason why there are no commands."""


class Paper(Settings):
    """The tables and figures of a paper."""

    title: str
    """Short reference."""
    tables: tuple[PublishedTable, ...]
    properties: tuple[PropertyTable, ...] = ()
    figures: tuple[PublishedFigure, ...] = Field(default=())


@cache
def read_paper(name: str) -> Paper:
    """Read the tables of a paper; SettingsError if a key or value of the file is not valid."""
    path = recipe_folder() / name / TABLES_FILE
    return Paper.parse(read_yaml(path), str(path))


def published_tables() -> dict[str, PublishedTable]:
    """Return the published tables of scores by name."""
    return {table.name: table for paper in PAPERS for table in read_paper(paper).tables}


def property_tables() -> dict[str, PropertyTable]:
    """Return the published tables of properties of models by name."""
    return {table.name: table for paper in PAPERS for table in read_paper(paper).properties}


def find_table(name: str) -> PublishedTable:
    """Return a published table of scores by its name, 'paper/table'; SettingsError if there is no such table."""
    tables = published_tables()
    if name not in tables:
        raise SettingsError(f"table '{name}': expected one of {', '.join(tables)}{did_you_mean(name, tables)}")
    return tables[name]


def _with_scores(row: dict[str, Any], columns: list[TableColumn]) -> dict[str, Any]:
    """A row whose printed scores are values on our scale and marks."""
    published, marks = dict(row.get("published", {})), dict(row.get("published_marks", {}))
    for dataset, printed in published.items():
        if isinstance(printed, str):
            cells = printed.split()
            if len(cells) != len(columns):
                raise ValueError(f"row '{row.get('name')}': {len(columns)} columns, but {len(cells)} scores: {printed}")
            scores = {column: cell for column, cell in zip(columns, cells, strict=True) if cell != "-"}
            published[dataset] = {
                column.score: round(float(cell.rstrip(DAGGERS)) / column.scale, 6) for column, cell in scores.items()
            }
            marked = {column.score: cell.lstrip("0123456789.") for column, cell in scores.items()}
            if marked := {score: mark for score, mark in marked.items() if mark}:
                marks[dataset] = marked
    return {**row, "published": published, "published_marks": marks}
