"""Styles in which people write tests of `double(x)`, and the same without an assertion that runs."""

ENTRY = {"entry_point": "double"}

STYLES = {
    "plain assertions": """
import math
assert double(2) == 4
assert all(map(lambda x: double(x) == 2 * x, [1, 2, 3]))
assert math.isclose(double(0.25), 0.5)
for got, wanted in zip(map(double, [5, "ab"]), [10, "abab"]):
    assert got == wanted
""",
    "functions": """
import pytest
from solution import double

def test_number():
    assert double(21) == 42
    assert double(0.5) == pytest.approx(1.0)

@pytest.mark.parametrize("value, wanted", [(3, 6), ("ab", "abab")])
def test_each(value, wanted):
    assert double(value) == wanted

def test_none():
    with pytest.raises(TypeError):
        double(None)
    assert list(filter(lambda x: double(x) != 2 * x, [1, 2, 3])) == []
""",
    "pytest classes": """
class TestDouble:
    def setup_method(self):
        self.cases = [(2, 4), (0.5, 1.0), ("ab", "abab")]

    def test_cases(self):
        for value, wanted in self.cases:
            assert double(value) == wanted

    def test_list(self):
        assert list(map(double, [[1], [2]])) == [[1, 1], [2, 2]]
""",
    "unittest": """
import unittest
from solution import double

class DoubleTest(unittest.TestCase):
    def setUp(self):
        self.values = [1, 2.5, "ab"]

    def test_values(self):
        for value in self.values:
            with self.subTest(value):
                self.assertEqual(double(value), value * 2)

    def test_wrong(self):
        with self.assertRaises(TypeError):
            double(None)
        self.assertTrue(all(double(x) == 2 * x for x in range(3)))

if __name__ == "__main__":
    unittest.main()
""",
    "HumanEval": """
METADATA = {"author": "somebody", "dataset": "test"}

def check(candidate):
    assert candidate(2) == 4
    assert candidate("ab") == "abab"
    assert all(map(lambda x: candidate(x) == 2 * x, [1, 2, 3]))
""",
    "asynchronous": """
import asyncio

async def results(values):
    for value in values:
        await asyncio.sleep(0)
        yield double(value)

async def test_double():
    assert double(2) == 4
    assert [each async for each in results([1, "ab"])] == [2, "abab"]
""",
}

WITHOUT_ASSERTIONS = {
    "only a comment": "# double(2) is 4",
    "empty": "\n",
    "only a call": "double(2)",
    "a constant": "double(2)\nassert True\nassert (double(2) == 5, 'a tuple')",
    "a function without assertions": "def test_double():\n    double(2)",
    "a function that nothing calls": "def verify():\n    assert double(2) == 4\ndouble(2)",
    "a pytest class without assertions": "class TestDouble:\n    def test_double(self):\n        double(2)",
    "a class that pytest does not collect": "class Double:\n    def test_double(self):\n        assert double(2) == 4",
    "a class with a constructor": """
class TestDouble:
    def __init__(self): pass
    def test_double(self): assert double(2) == 4
""",
    "unittest without assertions": """
import unittest
class DoubleTest(unittest.TestCase):
    def test_double(self): double(2)
""",
    "unittest that skips": """
import unittest
class DoubleTest(unittest.TestCase):
    @unittest.skip("not today")
    def test_double(self): self.assertEqual(double(2), 4)
""",
    "pytest that skips": """
import pytest
@pytest.mark.skip
def test_double(): assert double(2) == 4
""",
    "check without assertions": "def check(candidate):\n    candidate(2)",
    "check that is never called": "def check(candidate, more):\n    assert candidate(2) == more",
    "an asynchronous function without assertions": "async def test_double():\n    double(2)",
    "a generator": "def test_double():\n    yield double(2)\n    assert double(2) == 4",
    "an asynchronous generator": "async def test_double():\n    yield double(2)\n    assert double(2) == 4",
    "an empty loop": "for value in []:\n    assert double(value) == 4",
    "a branch that is never taken": "import os\nif os.environ.get('THOROUGH'):\n    assert double(2) == 4",
    "a main block without assertions": "if __name__ == '__main__':\n    print(double(2))",
}
