"""The program in a completion."""

from __future__ import annotations

import time

import pytest

from purerl.rewards.code.completions import Program, find_program, open_block

PYTHON, PLAIN, CPP = "```python\nx = 1\n```\n", "```\ny = 2\n```\n", "```cpp\nint z;\n```\n"


@pytest.mark.parametrize(
    ("completion", "language", "program"),
    [
        ("x = 1", "python", "x = 1"),
        ("    return x\n", "python", "    return x\n"),
        (PYTHON, "python", "x = 1\n"),
        (f"So:\n{PYTHON}Then:\n```py\nx = 3\n```", "python", "x = 3\n"),
        (f"{PYTHON}The output:\n{PLAIN}", "python", "x = 1\n"),
        (f"{PLAIN}The output:\n```text\n3\n```\n", "python", "y = 2\n"),
        (f"{PYTHON}{CPP}", "python", "x = 1\n"),
        (f"{PYTHON}{CPP}", "c++", "int z;\n"),
        (f"{PLAIN}", "c++", "y = 2\n"),
        ("```{.python}\nx\n```", "python", "x\n"),
        ("```Python 3\nx\n```", "python", "x\n"),
        ("~~~python\nx\n~~~", "python", "x\n"),
        ("````python\n```\nx\n````", "python", "```\nx\n"),
        ("1. So:\n   ```python\n   def f():\n       pass\n   ```", "python", "def f():\n    pass\n"),
        ("```python\ndef f():\n    return", "python", "def f():\n    return"),
        ("    return x\n```\n", "python", "    return x\n```\n"),
        (f"<think>First\n{PYTHON}</think>\n{PLAIN}", "python", "y = 2\n"),
        (f"Thinking {PYTHON}</think>z = 3", "python", "z = 3"),
        ("```python\r\nx = 1\r\n```", "python", "x = 1\r\n"),
    ],
)
def test_program_of_a_completion(completion: str, language: str, program: str) -> None:
    found = find_program(completion, language)
    assert found is not None
    assert found.text == program


@pytest.mark.parametrize(
    "completion", ["", " \n", f"<think>{PYTHON}", "```cpp\nint z;\n```", "<think>x</think>", "```python\n\n```"]
)
def test_completion_without_a_program(completion: str) -> None:
    assert find_program(completion, "python") is None


@pytest.mark.parametrize("language", [None, "python"])
@pytest.mark.parametrize(
    "label",
    [
        "python:main.py", "python,editable", "python{1,3}", "{python, echo=FALSE}", "python3.11", "ipython", "python2",
        "Python-3", "ipython3", "python title=a.py", "{.python .numberLines}", "python;x", "py(a.py)",
    ],
)  # fmt: skip
def test_label_may_have_a_version_and_options(label: str, language: str | None) -> None:
    assert find_program(f"```{label}\nx = 1\n```", language) == Program("x = 1\n", "python")


@pytest.mark.parametrize("label", ["c++17", "cpp20", "C++:main.cpp", "cpp,ignore"])
def test_label_of_another_language_may_have_a_version(label: str) -> None:
    assert find_program(f"```{label}\nint z;\n```\n```python\nx\n```", "c++") == Program("int z;\n", "c++")


@pytest.mark.parametrize("language", [None, "python"])
@pytest.mark.parametrize(
    ("completion", "program"),
    [
        (f"{PYTHON}```python\n```", "x = 1\n"),
        (f"{PYTHON}```python\n\n```\n```\n\n```\n", "x = 1\n"),
        ("```\ny = 2\n```\n```python\n \n```", "y = 2\n"),
        ("Here is the code: ```python\nprint(7)\n```", "print(7)\n"),
        ("Use `f`: ```py\nprint(7)\n```\nIt prints 7.", "print(7)\n"),
        ("```python\n# as in ```python\nprint(7)\n```\n", "# as in ```python\nprint(7)\n"),
        ("# as in ```python\nprint(7)\n", "# as in ```python\nprint(7)\n"),
        ("```print(7)```", "print(7)"),
        ("\n```print(7)```\n", "print(7)"),
        ("```python\nprint(7)```", "print(7)"),
        ("> ```python\n> if 1:\n>     print(7)\n>\n> ```\n", "if 1:\n    print(7)\n\n"),
        (">```python\n>print(7)\n>```\n", "print(7)\n"),
        ("```python\nprint(7)\n``` done", "print(7)\n"),
        ("```python\nprint(7)\n``` This prints 7.\n```bash\npython a.py\n```", "print(7)\n"),
        ('```python\nprint("</think>")\nprint(7)\n```', 'print("</think>")\nprint(7)\n'),
        ("<think>Hm.</think>```python\nprint('<think>', '</think>\\n')\n```", "print('<think>', '</think>\\n')\n"),
        ("```python\nprint('<think>')\n```", "print('<think>')\n"),
        ('Then "done"</think>print(7)', "print(7)"),
        ("\ufeffprint(7)", "print(7)"),
        ("\ufeff```python\nprint(7)\n```", "print(7)\n"),
        ("```python\n\ufeffprint(7)\n```", "print(7)\n"),
    ],
)
def test_program_in_forms_that_models_write(completion: str, program: str, language: str | None) -> None:
    found = find_program(completion, language)
    assert found is not None
    assert found.text == program


def test_open_block_may_end_with_a_fence_and_text() -> None:
    text = "    return 7\n``` It returns 7.\n```python\nf()\n```"
    assert find_program(text, "python", is_open=True) == Program("    return 7\n")


def test_the_label_names_the_language() -> None:
    assert find_program(f"{PYTHON}{CPP}{PLAIN}", None) == Program("int z;\n", "c++")
    assert find_program(PLAIN, None) == Program("y = 2\n", None)
    assert find_program("x = 1", None) == Program("x = 1", None)


BASH = "```bash\npython x.py\n```\n"
DOCSTRING = 'def f():\n    """Add.\n\n{0}```python\n{0}f()\n{0}```\n    """\n    return 1\n'


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        (f"{PYTHON}Run it:\n{BASH}", Program("x = 1\n", "python")),
        (f"{CPP}{BASH}{BASH}", Program("int z;\n", "c++")),
        (f"{PYTHON}```sh\npython x.py\n```\nIt prints\n```text\n1\n```", Program("x = 1\n", "python")),
        (f"{PYTHON}```console\n$ python x.py\n```\n```json\n{{}}\n```", Program("x = 1\n", "python")),
        (f"{BASH}{PYTHON}", Program("x = 1\n", "python")),
        (f"{PLAIN}{BASH}", Program("y = 2\n")),
        (BASH, Program("python x.py\n", "bash")),
        (f"{PYTHON}```shell\npython x.py", Program("x = 1\n", "python")),
    ],
)
def test_shell_after_a_program_only_says_how_to_run_it(completion: str, program: Program) -> None:
    assert find_program(completion, None) == program


def test_known_language_decides_between_blocks() -> None:
    assert find_program(f"{PYTHON}{BASH}", "bash") == Program("python x.py\n", "bash")
    assert find_program(f"{PYTHON}{BASH}", "python") == Program("x = 1\n", "python")


@pytest.mark.parametrize("language", [None, "python"])
@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("<think>x</think><answer>print(7)</answer>", "print(7)"),
        ("<answer>\nprint(7)\n</answer>\nDone.", "\nprint(7)\n"),
        ("So <answer>print(7)", "print(7)"),
        ("print(7)</answer>", "print(7)"),
        (f"<answer>\n{PYTHON}</answer>", "x = 1\n"),
        ("<answer>```python\nprint(7)\n```</answer>", "print(7)\n"),
        ("<answer>```python\na\n```</answer> or <answer>```python\nb\n```</answer>", "b\n"),
        (f"{PYTHON}<answer>{PLAIN}</answer>", "y = 2\n"),
        (f"{PYTHON}<answer></answer>", "x = 1\n"),
        (f"{PYTHON}<ANSWER>print(7)</ANSWER>", "print(7)"),
        ('```python\nprint("<answer>7</answer>")\n```', 'print("<answer>7</answer>")\n'),
        ("print('<answer>7</answer>')", "print('<answer>7</answer>')"),
        ("<answer>```python\nprint('</answer>')\n```\n</answer>", "print('</answer>')\n"),
        ('<answer lang="python">\nprint(7)\n</answer>', "\nprint(7)\n"),
        (f"{PYTHON}<answer type='code' id=a-1 >{PLAIN}</answer>", "y = 2\n"),
        ("<answer><answer>\nprint(7)\n</answer></answer>", "\nprint(7)\n"),
        ("<answer>a <answer lang=py>print(7)</answer> b</answer> c", "print(7)"),
        ("print(7)</answer></answer>", "print(7)"),
        ("if 1 <answer and answer> 3: print(7)", "if 1 <answer and answer> 3: print(7)"),
    ],
)
def test_program_in_an_answer(completion: str, program: str, language: str | None) -> None:
    found = find_program(completion, language)
    assert found is not None
    assert found.text == program


@pytest.mark.parametrize("indent", ["", "    "])
@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_fence_in_a_docstring_is_part_of_the_program(indent: str, quotes: str) -> None:
    source = DOCSTRING.format(indent).replace('"""', quotes)
    for text in (f"```python\n{source}```", f"So:\n```\n{source}```\n{BASH}", source, f"<answer>\n{source}</answer>"):
        found = find_program(text, None)
        assert found is not None
        assert found.text.lstrip("\n") == source


def test_string_that_does_not_end_hides_no_fence() -> None:
    broken = '```python\nx = """a\n```\nNo:\n'
    assert find_program(broken, "python") == Program('x = """a\n', "python")
    assert find_program(f"{broken}{PYTHON}", "python") == Program("x = 1\n", "python")
    fixed = '```python\ndef f():\n    """Doc."""\n```\n'
    assert find_program(f"{broken}{fixed}", "python") == Program('def f():\n    """Doc."""\n', "python")
    prose = f'It\'s a """docstring, don\'t use it.\n{PYTHON}'
    assert find_program(prose, "python") == Program("x = 1\n", "python")


def test_a_prompt_may_open_the_block() -> None:
    assert open_block("Complete:\n```python\ndef f(x):\n") == ("python", "def f(x):\n", False)
    assert open_block(PYTHON) is None
    assert find_program("    return x\n```\nIt returns x.\n```python\nf(1)\n```", "python", is_open=True) == Program(
        "    return x\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "```" * 10**6, "```\n" * 2 * 10**5, "~" * 10**7, " " * 10**7 + "```", "</think>" * 10**6, "<answer>" * 10**5,
        "```\n\"\"\"\n" * 10**5, "```\n" + "\"\\" * 10**5 + "\n```\n", "```\n'''\n\"\"\"\n" * 10**5,
        "```\n\"\"\"\n" + "```\n" * 10**5, "<answer>```\n" * 10**5,
        "<answer " + " " * 10**7, "<answer " + "a=b " * 10**6, "x```" * 10**6, "x" * 10**7 + "```", "> " * 10**6,
    ],
)  # fmt: skip
def test_long_completions_take_linear_time(text: str) -> None:
    start = time.process_time()
    find_program(text, "python")
    assert time.process_time() - start < 20
