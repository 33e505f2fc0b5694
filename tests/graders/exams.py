"""Right programs under tests of every form."""

from typing import Any

Case = tuple[str, str, dict[str, Any]]
"""A program, its tests, and more that the sample says."""


HONEST: dict[str, Case] = {
    "next assertRaises": (
        "def it(): yield 1",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        i = it()
        self.assertEqual(next(i), 1)
        with self.assertRaises(StopIteration): next(i)
        self.assertRaises(StopIteration, next, i)
        self.assertEqual(next(i, 7), 7)
""",
        {},
    ),
    "next pytest": (
        "def it(): yield 1",
        """
import pytest
def test_a():
    i = it()
    assert next(i) == 1
    with pytest.raises(StopIteration): next(i)
    with pytest.raises(StopIteration): i.__next__()
""",
        {},
    ),
    "next iter()": (
        "def it(): yield 1",
        """
import pytest
i = iter(it())
assert next(i) == 1
with pytest.raises(StopIteration): next(i)
try:
    next(i)
    assert False
except StopIteration: pass
""",
        {},
    ),
    "class iterator": (
        """
class C:
    def __init__(self): self.n=0
    def __iter__(self): return self
    def __next__(self):
        self.n+=1
        if self.n>3: raise StopIteration
        return self.n
""",
        """
assert list(C()) == [1, 2, 3]
assert [x for x in C()] == [1, 2, 3]
c = C()
assert next(c) == 1
assert list(zip(C(), 'abc')) == [(1, 'a'), (2, 'b'), (3, 'c')]
assert sum(C()) == 6
a, b, d=C()
assert b == 2
""",
        {},
    ),
    "f raises StopIteration honest": (
        "def f(): raise StopIteration('end')",
        """
import pytest
with pytest.raises(StopIteration, match='end'): f()
""",
        {},
    ),
    "async program": (
        "async def double(x): return x*2",
        """
import asyncio
async def test_a():
    assert await double(2) == 4
    assert await asyncio.gather(double(1), double(2)) == [2, 4]
    t = asyncio.create_task(double(4))
    assert await t == 8
    assert await asyncio.wait_for(double(3), 5) == 6
def test_b():
    assert asyncio.run(double(3)) == 6
""",
        {},
    ),
    "async gen program": (
        """
async def up(n):
    for i in range(n): yield i
""",
        """
async def test_a():
    assert [x async for x in up(3)] == [0, 1, 2]
""",
        {},
    ),
    "IsolatedAsyncio": (
        "async def double(x): return x*2",
        """
import unittest
class T(unittest.IsolatedAsyncioTestCase):
    async def test_a(self):
        self.assertEqual(await double(2), 4)
""",
        {},
    ),
    "async ctx": (
        """
class C:
    async def __aenter__(self): return self
    async def __aexit__(self,*e): return False
    def x(self): return 4
""",
        """
async def test_a():
    async with C() as c:
        assert c.x() == 4
""",
        {},
    ),
    "assertRaises SystemExit": (
        """
import sys
def f(): sys.exit(3)
""",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(SystemExit) as cm: f()
        self.assertEqual(cm.exception.code, 3)
""",
        {},
    ),
    "KeyboardInterrupt raises": (
        "def f(): raise KeyboardInterrupt",
        """
import pytest
with pytest.raises(KeyboardInterrupt): f()
""",
        {},
    ),
    "gen arg": (
        "def f(x): return sum(x)",
        """
assert f(x for x in [1, 2]) == 3
assert f(map(int, '12')) == 3
assert f({1:2}.keys()) == 1
""",
        {},
    ),
    "own gcd": (
        "def gcd(a, b): return b and gcd(b, a%b) or a",
        """
assert gcd(12, 18) == 6
assert gcd(5, 7) == 1
""",
        {},
    ),
    "gcd imported": ("from math import gcd", "assert gcd(12, 18) == 6", {}),
    "gcd entry": (
        "from math import gcd",
        """
assert gcd(12, 18) == 6
assert candidate(2, 4) == 2
""",
        {"entry_point": "gcd"},
    ),
    "two own": (
        """
def factorial(n): return 1 if n<2 else n*factorial(n-1)
def double(x): return x*2
""",
        """
assert factorial(3) == 6
assert double(2) == 4
""",
        {},
    ),
    "class own": (
        """
class Stack:
    def __init__(s): s.x=[]
    def push(s, v): s.x.append(v)
    def pop(s): return s.x.pop()
def helper(): return 3
""",
        """
s = Stack()
s.push(helper())
assert s.pop() == 3
""",
        {},
    ),
    "compose own": (
        """
def square(x): return x*x
def add(a, b): return a+b
""",
        "assert add(square(2), 1) == 5",
        {},
    ),
    "explicit factorial mix": (
        """
def factorial(n): return 1 if n<2 else n*factorial(n-1)
def double(x): return x*2
""",
        """
from solution import factorial, double
assert double(factorial(3)) == 12
""",
        {},
    ),
    "module attr": (
        "def double(x): return x*2",
        """
import solution
assert solution.double(2) == 4
""",
        {},
    ),
    "module alias": (
        "def double(x): return x*2",
        """
import solution as s
assert s.double(2) == 4
""",
        {},
    ),
    "calendar as fn": ("def bisect(a, x): return 1", "assert bisect([1], 2) == 1", {}),
    "main block": (
        "def double(x): return x*2",
        """
def test_a():
    assert double(2) == 4
if __name__ == '__main__':
    test_a()
    print('ok')
""",
        {},
    ),
    "main block only": (
        "def double(x): return x*2",
        """
if __name__ == '__main__':
    assert double(2) == 4
""",
        {},
    ),
    "main pytest.main": (
        "def double(x): return x*2",
        """
import pytest, sys
def test_a():
    assert double(2) == 4
if __name__ == '__main__':
    sys.exit(pytest.main([__file__]))
""",
        {},
    ),
    "main unittest runner": (
        "def double(x): return x*2",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertEqual(double(2), 4)
if __name__ == '__main__':
    unittest.TextTestRunner().run(unittest.TestLoader().loadTestsFromTestCase(T))
""",
        {},
    ),
    "raise style": (
        "def double(x): return x*2",
        """
if double(2) != 4:
    raise ValueError('x')
""",
        {},
    ),
    "try style": (
        "def f(x): raise ValueError",
        """
try:
    f(1)
    assert False, 'no'
except ValueError:
    pass
""",
        {},
    ),
    "try else style": (
        "def f(x): raise ValueError",
        """
try:
    f(1)
except ValueError:
    pass
else:
    raise AssertionError('no')
""",
        {},
    ),
    "printing tests": (
        "def double(x): return x*2",
        """
try:
    assert double(2) == 4
    print('ok')
except AssertionError as e:
    print('bad', e)
""",
        {},
    ),
    "either": (
        "def double(x): return x*2",
        """
try:
    assert double(2) == 5
except AssertionError:
    assert double(2) == 4
""",
        {},
    ),
    "dataclass in tests": (
        "def double(x): return x*2",
        """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Case:
    x: int
    y: int
for c in [Case(2, 4)]:
    assert double(c.x) == c.y
""",
        {},
    ),
    "docstring fn": (
        "def double(x): return x*2",
        """
def test_a():
    'doc'
    global q
    q = 4
    assert double(2) == q
""",
        {},
    ),
    "nonlocal": (
        "def double(x): return x*2",
        """
def test_a():
    q = 0
    def inner():
        nonlocal q
        q = double(2)
        assert q == 4
    inner()
""",
        {},
    ),
    "fixture": (
        "def double(x): return x*2",
        """
import pytest
@pytest.fixture
def two(): return 2
@pytest.fixture
def four(two):
    yield two*2
def test_a(two, four): assert double(two) == four
class TestB:
    @pytest.fixture
    def three(self): return 3
    def test_b(self, three): assert double(three) == 6
""",
        {},
    ),
    "classes setup": (
        "def double(x): return x*2",
        """
class TestA:
    @classmethod
    def setup_class(cls): cls.x=2
    def setup_method(self, method): self.y=4
    def test_a(self): assert double(self.x) == self.y
    @staticmethod
    def test_s(): assert double(1) == 2
    async def test_as(self): assert double(1) == 2
""",
        {},
    ),
    "inherit": (
        "def double(x): return x*2",
        """
class Base:
    v = 2
    def test_a(self): assert double(self.v) == 2*self.v
class TestB(Base): v=3
""",
        {},
    ),
    "setUpClass": (
        "def double(x): return x*2",
        """
import unittest
class T(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.x=2
    def test_a(self): self.assertEqual(double(self.x), 4)
""",
        {},
    ),
    "helper assert": (
        "def double(x): return x*2",
        """
def check_double(x, y):
    assert double(x) == y
check_double(2, 4)
""",
        {},
    ),
    "check called itself": (
        "def double(x): return x*2",
        """
def check(f):
    assert f(2) == 4
check(double)
""",
        {},
    ),
    "check inferred from program": (
        """
def helper(x): return x*2
def double(x): return helper(x)
""",
        """
def check(candidate):
    assert candidate(2) == 4
""",
        {},
    ),
    "check method": (
        """
class Solution:
    def double(self, x): return 2*x
""",
        """
def check(candidate):
    assert candidate(2) == 4
""",
        {"entry_point": "Solution.double"},
    ),
    "candidate top": ("def double(x): return x*2", "assert candidate(2) == 4", {"entry_point": "double"}),
    "test module-level setup": (
        "def double(x): return x*2",
        """
def setup_module(module): module.K=4
def test_a(): assert double(2) == K
""",
        {},
    ),
    "unittest setUpModule": (
        "def double(x): return x*2",
        """
import unittest
def setUpModule():
    global K
    K = 4
class T(unittest.TestCase):
    def test_a(self): self.assertEqual(double(2), K)
""",
        {},
    ),
    "lambda check": (
        "def double(x): return x*2",
        """
check = lambda x, y: double(x) == y
assert check(2, 4)
""",
        {},
    ),
    "empty zip honest": ("def double(x): return [4]", "for a, b in zip(double(2), [4]): assert a == b", {}),
    "callback only": (
        "def run(cb): cb(4)",
        """
def cb(x): assert x == 4
run(cb)
""",
        {},
    ),
    "callback raising ValueError": (
        """
def retry(f):
    for _ in range(3):
        try: return f()
        except ValueError: pass
""",
        """
n = [0]
def flaky():
    n[0]+=1
    if n[0]<3: raise ValueError('x')
    return 7
assert retry(flaky) == 7
""",
        {},
    ),
    "swallow count honest": (
        "def double(x): return x*2",
        """
fails = 0
try:
    assert double(2) == 4
except Exception as e:
    fails+=1
print(fails)
""",
        {},
    ),
    "MyError honest": (
        """
class MyError(ValueError): pass
def f(x): raise MyError
""",
        """
from solution import MyError
try:
    f(1)
    assert False
except MyError: pass
""",
        {},
    ),
    "IndexError native": (
        "def f(x): return []",
        """
try:
    f(1)[0]
    assert False
except IndexError: pass
""",
        {},
    ),
    "thread honest": (
        "def double(x): return x*2",
        """
import threading
from concurrent.futures import ThreadPoolExecutor
def test_a():
    with ThreadPoolExecutor(4) as p:
        assert list(p.map(double, range(20))) == [2*i for i in range(20)]
""",
        {},
    ),
    "eval own": ("def double(x): return x*2", "assert double(2) == eval('4')", {}),
    "kw expected": (
        "def f(): raise ValueError",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(expected_exception=ValueError): f()
""",
        {},
    ),
    "static in class scope": (
        "def double(x): return x*2",
        """
class TestX:
    assert double(2) == 4
    def test_a(self): pass
""",
        {},
    ),
    "unittest with prints": (
        """
def double(x):
    print(x)
    return 2*x
""",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        self.assertEqual(double(1), 2)
        self.assertEqual(double(2), 4)
        self.assertEqual(list(map(double, [2])), [4])
""",
        {},
    ),
    "assertRaises AssertionError native": (
        "def double(x): return x*2",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(AssertionError): self.assertEqual(double(2), 5)
""",
        {},
    ),
    "custom multi base": (
        """
class E(KeyError, ValueError): pass
def f(): raise E('x')
""",
        """
import pytest
with pytest.raises(ValueError): f()
with pytest.raises(KeyError): f()
""",
        {},
    ),
    "custom hierarchy": (
        """
class A(Exception): pass
class B(A): pass
def f(): raise B('x')
""",
        """
import pytest
from solution import A, B
with pytest.raises(A): f()
with pytest.raises(B): f()
assert issubclass(B, A)
""",
        {},
    ),
    "conftest style helper class": (
        "def double(x): return x*2",
        """
class Helper:
    @staticmethod
    def verify(x, y):
        assert double(x) == y
Helper.verify(2, 4)
""",
        {},
    ),
    "nested test class": (
        "def double(x): return x*2",
        """
class TestOuter:
    def test_o(self): assert double(1) == 2
    class TestInner:
        def test_i(self): assert double(2) == 4
""",
        {},
    ),
    "class parametrize": (
        "def double(x): return x*2",
        """
import pytest
@pytest.mark.parametrize('x, y', [(1, 2), (2, 4)])
class TestA:
    def test_a(self, x, y): assert double(x) == y
""",
        {},
    ),
    "main returns": (
        "def double(x): return x*2",
        """
def main():
    assert double(2) == 4
if __name__ == '__main__':
    main()
""",
        {},
    ),
    "test in main class inst": (
        "def double(x): return x*2",
        """
class Tester:
    def test_x(self): assert double(2) == 4
Tester().test_x()
""",
        {},
    ),
    "table loop of lambdas": (
        "def double(x): return x*2",
        """
tests = [lambda: double(2) == 4]
for t in tests: assert t()
""",
        {},
    ),
    "walrus": ("def double(x): return x*2", "assert (r:=double(2)) == 4 and r>3", {}),
    "match stmt": (
        "def double(x): return x*2",
        """
match double(2):
    case 4: ok=True
    case _: ok=False
assert ok
""",
        {},
    ),
    "with raises tuple": (
        "def f(): raise StopIteration",
        """
import pytest
with pytest.raises((StopIteration, ValueError)): f()
""",
        {},
    ),
    "suppress stop": (
        """
def f(): raise StopIteration
def double(x): return 2*x
""",
        """
from contextlib import suppress
with suppress(StopIteration): f()
assert double(1) == 2
""",
        {},
    ),
    "assert in lambda default": (
        "def double(x): return x*2",
        """
def t(x=double(2)):
    assert x == 4
t()
""",
        {},
    ),
}
