"""Recipes: runs at the paper's scale, each a TOML file whose comments say what the paper does not.

    [run]     options of `whale run`, spelled as on the command line
    [plan]    what `whale plan` assumes beside them

A recipe is no more than a command line in a file: it is checked as one, and what is typed beside it goes before it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from whale_envs.errors import UserError, unknown

RECIPES = Path(__file__).parent
#: What is said on the command line alone.
_TYPED = ("recipe", "out")


@dataclass(frozen=True)
class Recipe:
    """A recipe as it is in its file: `run` and `plan` are options by their names there."""

    path: Path
    run: Mapping[str, object]
    plan: Mapping[str, object]


def recipe_names() -> list[str]:
    """The recipes that ship."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(given: str) -> Recipe:
    """The recipe of that name, or in that file.

    Raises `UserError` for a name that does not ship and a file that is not there or no recipe.
    """
    if given not in recipe_names() and not given.endswith(".toml"):
        raise unknown("recipe", given, [*recipe_names(), "FILE.toml"])
    path = RECIPES / f"{given}.toml" if given in recipe_names() else Path(given).expanduser()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UserError(f"cannot read recipe {path}: {why}; {', '.join(recipe_names())} ship") from None
    except (ValueError, RecursionError) as error:  # the latter of brackets in brackets
        raise UserError(f"recipe {path} is no TOML ({error}): mend it") from None
    for name, table in tables.items():
        if name not in ("run", "plan") or not isinstance(table, dict):
            raise UserError(f"recipe {path} holds {name!r}: expected options in two tables, [run] and [plan]")
    return Recipe(path, tables.get("run", {}), tables.get("plan", {}))


def as_arguments(recipe: Recipe, options: Mapping[str, object], config: type) -> list[str]:
    """Options of a recipe as one would type them for the command that `config`, a dataclass, is made of.

    A harness may be a file beside the recipe. Raises `UserError` for an option that there is not.
    """
    defaults = {f.name: f.default for f in fields(config) if f.name not in _TYPED}
    typed, seen = [], set[str]()
    for option, value in options.items():
        name, flag = option.replace("-", "_"), option.replace("_", "-")
        if defaults.get(name, MISSING) is MISSING:
            raise unknown(f"option of {recipe.path}", option, (known.replace("_", "-") for known in defaults))
        if name in seen:
            raise UserError(f"{recipe.path} gives {flag} twice: keep one of them")
        seen.add(name)
        if isinstance(value, bool) != isinstance(defaults[name], bool):
            expected = "true or false" if isinstance(defaults[name], bool) else "a text or a number"
            raise UserError(f"{option} of {recipe.path} is {value!r}: expected {expected}")
        if isinstance(value, bool):
            if value != defaults[name]:
                typed.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, str | int | float):
            beside = recipe.path.parent / str(value)
            typed.append(f"--{flag}={beside if name == 'harness' and beside.is_file() else value}")
        else:
            raise UserError(f"{option} of {recipe.path} is {value!r}: expected a text, a number, true or false")
    return typed


def check_data(recipe: str, domain: str, dataset: str) -> None:
    """Say how the data of a recipe are made where they are not there: `UserError`."""
    tasks, _, corpus = dataset.partition(",corpus=")
    corpus = corpus.partition(",retriever=")[0]
    if not Path(tasks).expanduser().exists():
        whole = " --corpus" if domain == "search-qa" else ""
        made = f"whale data prepare {domain} --source hub{whole} --out {tasks}"
    elif corpus and "://" not in corpus and not Path(corpus).expanduser().exists():
        tasks, made = corpus, f"whale index build {tasks}/corpus/wiki-18.jsonl.gz --out {corpus}"
    else:
        return
    raise UserError(f"recipe {recipe} wants {tasks}, which is not there: `{made}` makes it, or give --dataset")
