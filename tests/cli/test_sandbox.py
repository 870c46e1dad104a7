"""`purerl sandbox run`: languages, input, output, limits, exit statuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from purerl.sandbox.languages import LANGUAGES
from purerl_cli.main import app

_C = """
#include <stdio.h>
int main(int n, char **a) { char t[9]; scanf("%s", t); printf("hi ['%s'] %s\\n", a[1], t); }
"""
_CPP = """
#include <iostream>
int main(int n, char **a) { std::string t; std::cin >> t; std::cout << "hi ['" << a[1] << "'] " << t << std::endl; }
"""
_JAVA = """
class A { public static void main(String[] a) {
    System.out.println("hi ['" + a[0] + "'] " + new java.util.Scanner(System.in).next());
} }
"""
_PROGRAMS = {
    "python": ("a.py", "import sys\nprint('hi', sys.argv[1:], sys.stdin.read())", "python"),
    "bash": ("a.sh", "echo \"hi ['$1'] $(cat)\"", "bash"),
    "javascript": ("a.js", "console.log(`hi ['${process.argv[2]}'] ` + require('fs').readFileSync(0))", "node"),
    "c": ("a.c", _C, "cc"),
    "c++": ("a.cpp", _CPP, "c++"),
    "java": ("A.java", _JAVA, "java"),
    "perl": ("a.pl", 'print "hi [\'$ARGV[0]\'] ", <STDIN>, "\\n";', "perl"),
}
"""Language -> file, a program that prints its argument and its input, and the command that it needs."""


def _run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["sandbox", "run", *arguments], input=stdin)


def test_every_language_has_a_program_here() -> None:
    assert set(_PROGRAMS) == set(LANGUAGES)


@pytest.mark.parametrize("language", _PROGRAMS)
def test_program_in_each_language(language: str, tmp_path: Path) -> None:
    name, source, tool = _PROGRAMS[language]
    if tool != "python" and not str(shutil.which(tool)).startswith(("/usr/bin/", "/bin/")):
        pytest.skip(f"{tool} is not installed in /usr/bin")
    (tmp_path / name).write_text(source)
    result = _run("--stdin", "-", "--timeout", "60", str(tmp_path / name), "there", stdin="text")
    assert result.stdout.split() == ["hi", "['there']", "text"], result.stderr
    assert result.stderr.startswith("ok, exit code 0, ")
    assert result.exit_code == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")
def test_without_layers_a_compiled_program_is_not_at_a_path_that_others_can_take(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("#include <stdio.h>\nint main(int n, char **a) { puts(a[0]); }")
    result = _run("--layers", "none", "--timeout", "60", str(tmp_path / "a.c"))
    assert Path(result.stdout.strip()).parents[1].name.startswith("purerl-sandbox-"), result.stderr


def test_output_exit_code_and_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys, b\nprint(b.x)\nsys.stderr.write('oops\\n')\nsys.exit(3)")
    (tmp_path / "b.py").write_text("x = 7")
    result = _run(str(tmp_path / "a.py"), "--with-file", str(tmp_path / "b.py"))
    assert (result.stdout, result.exit_code) == ("7\n", 1)
    assert result.stderr.startswith("oops\nerror, exit code 3, ")


@pytest.mark.parametrize(
    ("source", "options", "status"),
    [
        ("while True: pass", ["--timeout", "0.5"], "timeout"),
        ("while True: pass", ["--cpu-time", "0.3", "--timeout", "60"], "timeout"),
        ("x = b'x' * 2**28", ["--max-memory", "64MiB"], "memory"),
        ("x = b'x' * 2**28", ["--max-memory", "64"], "memory"),
        ("print('x' * 1000)", ["--max-output", "100"], "output"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", ["--max-processes", "5"], "processes"),
        ("open('a', 'wb').write(bytes(2**22))", ["--max-disk", "1MiB"], "error"),
    ],
)
def test_limits_are_options(source: str, options: list[str], status: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(source)
    result = _run(*options, str(tmp_path / "a.py"))
    assert result.stderr.splitlines()[-1].startswith(f"{status}, ")
    assert result.exit_code == 1


def test_two_files_with_one_name_are_invalid_input(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for file in (tmp_path / "a.py", tmp_path / "other" / "a.py"):
        file.write_text("print(1)")
    result = _run(str(tmp_path / "a.py"), "--with-file", str(tmp_path / "other" / "a.py"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "got:  a second file 'a.py'" in result.stderr
    assert _run(str(tmp_path / "a.py"), "--max-memory", "\u00b2").exit_code == 2


def test_program_without_a_language_and_unknown_language_are_invalid_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("print(1)")
    result = _run(str(tmp_path / "a.txt"))
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "error: language")
    result = _run(str(tmp_path / "a.txt"), "--language", "pythn")
    assert "did you mean 'python'?" in result.stderr
    assert _run(str(tmp_path / "a.txt"), "--language", "python").stdout == "1\n"
    for options in ([str(tmp_path / "missing.py")], [str(tmp_path / "a.txt"), "--stdin", "missing"], [str(tmp_path)]):
        assert _run(*options).exit_code == 2
