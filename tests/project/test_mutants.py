"""The list of mutants (tests/helpers/mutants.py) is one of the package and the tests as they are."""

import ast

import pytest
from mutants import ROOT, read_mutants

MUTANTS = list(read_mutants())


@pytest.mark.parametrize("file", dict.fromkeys(mutant.file for mutant in MUTANTS))
def test_every_mistake_can_be_planted(file):
    for mutant in MUTANTS:
        if mutant.file == file:
            ast.parse(mutant.plant(ROOT))


def test_the_tests_of_every_mistake_are_there():
    for word in {word for mutant in MUTANTS for word in mutant.tests if ".py" in word}:
        file, _, name = word.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() or not name, word
