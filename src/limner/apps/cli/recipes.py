"""The command that lists the recipes and shows one of them: recipes."""

from __future__ import annotations

from typing import Annotated

import typer

from limner.apps.cli.app import TRAIN, app
from limner.apps.cli.options import ChangesArgument, JsonOption
from limner.apps.cli.terminal import echo, print_json
from limner.errors import SettingsError, counted


@app.command(rich_help_panel=TRAIN)
def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(help="Recipe to show with all its settings, or a folder of recipes to list; default: list all."),
    ] = None,
    changes: ChangesArgument = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes with what they need, or show one with all its settings.

    A recipe is shown as YAML, which can be written to a file, changed and trained.

    Example: `limner recipes own/photos training.epochs=20`
    """
    from limner.runs.recipe import load_recipe, recipe_names
    from limner.runs.recipe_summary import recipe_yaml, summarise_recipe, summarise_recipes

    folder = f"{(recipe or '').rstrip('/')}/"
    names = [name for name in recipe_names() if recipe is None or name.startswith(folder)]
    if recipe is not None and (not names or recipe in recipe_names()):
        chosen = load_recipe(recipe, changes or [])
        summary = summarise_recipe(recipe, chosen, tuple(changes or ()))
        if as_json:
            print_json({**summary._asdict(), "settings": chosen.model_dump(mode="json")})
            return
        comments = [summary.description, f"needs: {'; '.join(summary.needs)}", *summary.commands]
        echo("".join(f"# {line}\n" for line in comments) + recipe_yaml(chosen), nl=False)
        return
    if changes:
        raise SettingsError(f"'{changes[0]}': changes a setting of one recipe, and '{recipe}' names several; name one")
    summaries = summarise_recipes(names)
    if as_json:
        print_json([one._asdict() for one in summaries])
        return
    for one in summaries:
        echo(f"{one.name}: {one.description}\n  needs: {'; '.join(one.needs)}")
    echo(f"{counted(len(summaries), 'recipe')}; 'limner recipes NAME' shows all settings of one and how to train it")
