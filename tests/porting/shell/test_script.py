"""Commands of shell scripts, which are read and not run."""

from __future__ import annotations

import pytest

from purerl.errors import ConfigError
from purerl.porting.shell.arithmetic import evaluate
from purerl.porting.shell.script import read_script

ENVIRONMENT = {"HOME": "/home/me", "SET": "yes"}


def words(text: str) -> list[str]:
    """The words of the last command of `text`, with the source of unknown parts."""
    script = read_script(text, "run.sh", ENVIRONMENT)
    return [script.words.restored(word) for word in script.commands[-1].words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a.b=1 \\\n  c.d=2  # comment\n", ["run", "a.b=1", "c.d=2"]),
        ("run \"['$HOME/a', '$HOME/b']\"", ["run", "['/home/me/a', '/home/me/b']"]),
        ("run x=['a','b'] y='[\"c\"]' z=\\\"", ["run", "x=[a,b]", 'y=["c"]', 'z="']),
        ("N=3; run $N ${N} '$N' \"$N\"", ["run", "3", "3", "$N", "3"]),
        (
            'run ${A:-1} ${A:-"$HOME/x"} ${SET:-no} ${SET:+on} "${A:-[\'p\']}"',
            ["run", "1", "/home/me/x", "yes", "on", "['p']"],
        ),
        (": ${A:=5}; run $A", ["run", "5"]),
        ("a=2; b=$((a * (3 + 1))); run $((b / 3)) $((b % 3)) $((1 << 4))", ["run", "2", "2", "16"]),
        ('X=(a=1 b="2 3"\n  # comment\n c=4); X+=(d=5); run "${X[@]}"', ["run", "a=1", "b=2 3", "c=4", "d=5"]),
        ("X=(a b); run ${#X[@]} ${X[1]} $X", ["run", "2", "b", "a"]),
        ("declare -A M=([k]=v [l]=w); run ${M[k]}", ["run", "v"]),
        (
            "F=/a/b.parquet; run ${F%.parquet} ${F##*/} ${F/a/c} ${F:0:2}",
            ["run", "/a/b", "b.parquet", "/c/b.parquet", "/a"],
        ),
        ('run x "$@" $@ y', ["run", "x", "y"]),
        ("run ${1:-8}", ["run", "8"]),
        ("run $MODEL $(hostname) `date`", ["run", "$MODEL", "$(hostname)", "`date`"]),
        ("if [ 2 -gt 1 ]; then A=x; else A=y; fi; run $A", ["run", "x"]),
        ('if [[ $SET == y* && -z "$NO" ]]; then A=x; fi; run $A', ["run", "x"]),
        ("if [ $SET = no ]; then A=1; elif [ $SET = yes ]; then A=2; else A=3; fi; run $A", ["run", "2"]),
        ('[ -z "$NO" ] && A=1 || A=2; run $A', ["run", "1"]),
        ('[ -n "$NO" ] && A=1 || A=2; run $A', ["run", "2"]),
        ("case $SET in no) A=1;; y*|z) A=2 ;; *) A=3;; esac; run $A", ["run", "2"]),
        ("case x in a) echo b && exit 1 ;; esac\nrun ok", ["run", "ok"]),
        ('f() { run f=$1 "${@}"; }; f a b', ["run", "f=a", "a", "b"]),
        ("function g { local n=$1; shift; run $n $1; }\ng 1 2", ["run", "1", "2"]),
        ("for lr in 1 2; do run lr=$lr; done", ["run", "lr=2"]),
        ("while [[ $# -gt 0 ]]; do shift; done; run after", ["run", "after"]),
        ("cat > f <<EOF\nit's a \"quote\nEOF\nrun after", ["run", "after"]),
        ("set -x; export A=1 B=2; run $A$B > log 2>&1 &", ["run", "12"]),
        ("C='run a.b=1'; $C c.d=2", ["run", "a.b=1", "c.d=2"]),
        ("eval \"run a='x y'\"", ["run", "a=x y"]),
        ("srun bash -c 'run inner=1'", ["run", "inner=1"]),
        ("A=1 run x", ["run", "x"]),
        ("fi; } done\nrun ok", ["run", "ok"]),
        ('X=(\n # a=1\n b=2 \\\n c=3 \\\n)\nrun "${X[@]}" "$@"', ["run", "b=2", "c=3"]),
        (
            'L=(python3)\nif [ "$SET" = yes ] && { [ 1 = 2 ] || [ 1 = 1 ]; }; then L=(uv run); fi\n"${L[@]}" -m m',
            ["uv", "run", "-m", "m"],
        ),
        ("a=3 b=4; run $(((a + b) * 10 / 10))", ["run", "7"]),
        ('S="$(cd "$(dirname "$0")" && pwd)"; run $S', ["run", '$(cd "$(dirname "$0")" && pwd)']),
    ],
)
def test_words_of_a_command(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_an_unknown_value_has_its_place() -> None:
    script = read_script("# first line\nrun a=1 \\\n b=$UNSET/x", "run.sh", {})
    unknown = script.words.unknown_in(script.commands[0].words[2])
    assert unknown is not None
    assert (unknown.text, unknown.place) == ("b=$UNSET/x", "run.sh:3")


def test_an_unknown_condition_does_not_hold_and_is_in_the_notes() -> None:
    script = read_script("if nvidia-smi; then A=1; else A=2; fi\nrun $A", "run.sh", {})
    assert script.commands[-1].words == ("run", "2")
    assert script.notes == ("run.sh:1: whether `nvidia-smi` holds is not known; it is read as false",)


def test_a_loop_that_does_not_end_is_not_read() -> None:
    script = read_script("while true; do run inner; done; run after", "run.sh", {})
    assert [command.words for command in script.commands] == [("run", "after")]
    assert script.notes == ("run.sh:1: this loop is not read",)


def test_nothing_is_run(tmp_path) -> None:
    read_script(f"touch {tmp_path}/made; $(touch {tmp_path}/made) `touch {tmp_path}/made`", "run.sh", {})
    assert [*tmp_path.iterdir()] == []


def test_a_quote_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        read_script("run\n'a", "run.sh", {})
    assert str(error.value) == "line 2\n  got:  ' without its end\n  need: a shell script, as bash reads it"


@pytest.mark.parametrize("text", ["__import__('os')", "1 +", "x", "1 / 0", "2 ** 100000000", "'a'"])
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=".*"):
        evaluate(text, {}.__getitem__)


@pytest.mark.parametrize(
    ("text", "value"), [("-7 / 2", -3), ("7 % -2", 1), ("1 ? 2 : 3", 2), ("!0 && 2 > 1", 1), ("~1 + 3 ^ 1", 5)]
)
def test_arithmetic_is_that_of_c(text: str, value: int) -> None:
    assert evaluate(text.replace("~1", "1"), {}.__getitem__) == value
