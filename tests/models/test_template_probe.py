"""Chat templates that never end or fill the memory are found in a process with limits, and then never used."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.errors import ConfigError
from purerl.models import template_probe
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model
from tests.data.made import CHATML, tokenizer

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SHOWN = "{% for m in messages %}{{ m.content }}{% endfor %}"
DOUBLED = "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
TEMPLATES = {
    "endless loops": (LOOP, "it did not end within 1 s of CPU time"),
    "endless with tools": (f"{{% if tools %}}{LOOP}{{% endif %}}{SHOWN}", "it did not end within 1 s"),
    "endless after a call": (f"{{% if messages[1:2] | selectattr('tool_calls') | list %}}{LOOP}{{% endif %}}", ""),
    "one huge text": ("{{ 'a' * 10**10 }}", "it needs more than 1,024 MiB of memory"),
    "a text that doubles": (DOUBLED, "it needs more than 1,024 MiB of memory"),
    "a huge number as text": ("{{ '%1000000000d' % 1 }}", "it needs more than 1,024 MiB|a text of 1,|it did not"),
    "a long text": ("{{ 'a' * 10**7 }}" + SHOWN, "a text of 10,000,0.. characters for a conversation"),
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
    "parentheses": (f"{{{{ {'(' * 3000}1{')' * 3000} }}}}", "it is nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_beyond_a_limit_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template, got = TEMPLATES[name]
    monkeypatch.setattr(template_probe, "_SECONDS", 1)
    monkeypatch.setattr(template_probe, "_WORK", "tests.models.test_template_probe:work_for_a_second")
    tokenizer(template).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"the chat template of .*\n  got:  .*({got})") as caught:
        load_tokenizer(Model(str(tmp_path)))
    assert "do:   put a corrected chat_template.jinja next to the tokenizer" in str(caught.value)


def work_for_a_second(connection: int, status: int) -> None:
    template_probe._SECONDS = 1  # pyright: ignore[reportPrivateUsage]
    template_probe.work(connection, status)


@pytest.mark.parametrize(
    "template", [CHATML, "{{ raise_exception('no') }}", "{% if %}", "{{ 1 // 0 }}", "{{ strftime_now('%Y') }}" + SHOWN]
)
def test_template_with_an_error_is_left_to_the_data(template: str, tmp_path: Path) -> None:
    tokenizer(template).save_pretrained(tmp_path)
    assert load_tokenizer(Model(str(tmp_path))).chat_template == template


@pytest.mark.started_workers
def test_template_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer(f"{{# {tmp_path} #}}{CHATML}").save_pretrained(tmp_path)  # no other test has it
    load_tokenizer(Model(str(tmp_path)))
    monkeypatch.setattr(template_probe, "Worker", None)
    load_tokenizer(Model(str(tmp_path)))
