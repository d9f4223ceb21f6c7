"""Tables of properties of models, which need no training: Table 6 of Mao et al. (2015)."""

from __future__ import annotations

from typing import Any, NamedTuple

from limner.models.mrnn import MRNNSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.runs.recipe import Recipe, load_recipe


class PropertyRow(NamedTuple):
    """A system with its published properties."""

    name: str
    """Name as printed in the paper."""
    published: tuple[str, ...]
    """Properties as printed, one for each column."""
    recipe: str | None = None
    """Recipe of the system; None if Limner has none."""
    other_authors: bool = True
    """Whether the paper cites the system from other authors."""


class PropertyTable(NamedTuple):
    """A published table of properties of recurrent layers."""

    name: str
    """Name of the table, 'paper/table'."""
    title: str
    columns: tuple[str, str]
    """Headings: the size of the recurrent layer, and whether it is an LSTM."""
    rows: tuple[PropertyRow, ...]
    notes: str
    """Paragraph printed below the table."""

    def to_markdown(self) -> str:
        """Render the properties of our recipes beside the published ones."""
        head = [*self.columns, *(f"{column}, published" for column in self.columns)]
        lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
        for row in self.rows:
            name = f"{row.name} (other authors)" if row.other_authors else row.name
            lines.append(f"| {' | '.join((name, *_properties_of(row), *row.published))} |")
        return "\n".join([f"# {self.title}", "", *lines, "", self.notes, ""])

    def to_plain(self) -> dict[str, Any]:
        """Return the table as plain values for JSON."""
        return {
            "table": self.name,
            "columns": list(self.columns),
            "rows": [
                {
                    "row": row.name,
                    "other_authors": row.other_authors,
                    "recipe": row.recipe,
                    "properties": list(_properties_of(row)),
                    "published": list(row.published),
                }
                for row in self.rows
            ],
        }


def _properties_of(row: PropertyRow) -> tuple[str, str]:
    """Size and kind of the recurrent layer of the row's recipe."""
    if row.recipe is None:
        return "–", "–"
    size, is_lstm = recurrent_properties(load_recipe(row.recipe, []))
    return str(size), "Yes" if is_lstm else "No"


def recurrent_properties(recipe: Recipe) -> tuple[int, bool]:
    """Return the number of units of the recurrent layer of a captioner, and whether it is an LSTM."""
    model = recipe.model
    assert isinstance(model, MRNNSettings | ShowAndTellSettings), "rows with a recipe are of these models"
    return model.hidden_dim, model.cell is not None and model.cell.name == "lstm"


MAO2015_TABLE_6 = PropertyTable(
    name="mao2015/table6",
    title="Mao et al. (2015), Table 6: recurrent layers of recent methods",
    columns=("RNN Dim.", "LSTM"),
    rows=(
        PropertyRow("Our m-RNN", ("256", "No"), "mao2015/flickr8k", other_authors=False),
        PropertyRow("MNLM", ("300", "Yes")),
        PropertyRow("NIC", ("512", "Yes"), "vinyals2015/flickr8k"),
        PropertyRow("LRCN", ("1000 (×4)", "Yes")),
        PropertyRow("RVR", ("100", "No")),
        PropertyRow("DeepVS", ("300-600", "No")),
    ),
    notes="The columns on the left are the settings of Limner's recipes.",
)
