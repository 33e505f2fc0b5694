"""Wrong programs under tests that could be led to pass them, and tests that cannot judge."""

from typing import Any

Case = tuple[str, str, dict[str, Any]]
"""A program, its tests, and more that the sample says."""


WRONG: dict[str, Case] = {
    "passback class": (
        """
class E(Exception): pass
def double(x): return E
""",
        "assert double(double(2)) == 8",
        {},
    ),
    "passback exc": ("def double(x): return ValueError(3)", "assert double(double(2)) == 8", {}),
    "passback keys": ("def double(x): return {1:2}", "assert double(double(2).keys()) == 8", {}),
    "passback iter": ("def double(x): return range(10**9)", "assert double(reversed(double(2))) == 8", {}),
    "passback type": (
        """
from fractions import Fraction
def double(x): return Fraction(1)
""",
        "assert double(type(double(2))) == 8",
        {},
    ),
    "raises missing import error hostile": (
        "def double(x): raise ImportError('numpy', name='numpy')",
        """
def test_a():
    assert double(2) == 4
""",
        {},
    ),
    "gcd missing": ("x = 1", "assert gcd(12, 18) == 6", {}),
    "two own, missing": (
        "def double(x): return x*3",
        """
assert factorial(3) == 6
assert double(2) == 4
""",
        {},
    ),
    "imported helper wrong": (
        """
from os import path
def double(x): return x*3
""",
        """
assert path.join('a', 'b') == 'a/b'
assert double(2) == 4
""",
        {},
    ),
    "main block only wrong": (
        "def double(x): return x",
        """
if __name__ == '__main__':
    assert double(2) == 4
""",
        {},
    ),
    "main unittest runner wrong": (
        "def double(x): return x",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertEqual(double(2), 4)
if __name__ == '__main__':
    unittest.TextTestRunner().run(unittest.TestLoader().loadTestsFromTestCase(T))
""",
        {},
    ),
    "raise style wrong": (
        "def double(x): return x",
        """
if double(2) != 4:
    raise ValueError('x')
""",
        {},
    ),
    "printing tests wrong": (
        "def double(x): return x",
        """
try:
    assert double(2) == 4
    print('ok')
except AssertionError as e:
    print('bad', e)
""",
        {},
    ),
    "classes setup wrong": (
        "def double(x): return x",
        """
class TestA:
    @classmethod
    def setup_class(cls): cls.x=2
    def setup_method(self, method): self.y=4
    def test_a(self): assert double(self.x) == self.y
""",
        {},
    ),
    "check no function": (
        "x = 1",
        """
def check(candidate):
    assert candidate(2) == 4
""",
        {},
    ),
    "entry missing": (
        "def other(x): return 2*x",
        """
def check(candidate):
    assert candidate(2) == 4
""",
        {"entry_point": "double"},
    ),
    "empty zip": ("def double(x): return []", "for a, b in zip(double(2), [4]): assert a == b", {}),
    "helper loop": (
        "def double(x): return []",
        """
def one(i): assert i == 4
for i in double(2): one(i)
""",
        {},
    ),
    "import guarded": (
        "x = 1",
        """
try:
    from solution import double
except ImportError:
    double = None
if double:
    assert double(2) == 4
""",
        {},
    ),
    "hasattr guarded": (
        "x = 1",
        """
import solution
if hasattr(solution, 'double'):
    assert solution.double(2) == 4
""",
        {},
    ),
    "callback count": (
        """
def run(cb, xs):
    cb(4)
    return []
""",
        """
def cb(x): assert x == 4
r = run(cb, [1])
for a, b in zip(r, [1]): assert a == b
""",
        {},
    ),
    "callback only, not called": (
        "def run(cb): pass",
        """
def cb(x): assert x == 4
run(cb)
""",
        {},
    ),
    "callback fails swallowed": (
        """
def run(cb):
    try: cb(5)
    except Exception: pass
""",
        """
def cb(x): assert x == 4
run(cb)
""",
        {},
    ),
    "object assert method": (
        """
class G:
    def assert_valid(self): pass
def make(): return G()
""",
        """
g = make()
g.assert_valid()
""",
        {},
    ),
    "swallow AE forged": (
        "def double(x): raise AssertionError",
        """
try:
    assert double(2) == 4
    print('ok')
except AssertionError as e:
    print('bad', e)
""",
        {},
    ),
    "swallow any forged": (
        "def double(x): raise ValueError",
        """
try:
    assert double(2) == 4
    print('ok')
except Exception as e:
    print('bad', e)
""",
        {},
    ),
    "swallow count": (
        "def double(x): raise ValueError",
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
    "MyError=Exception": (
        """
MyError = Exception
def f(x): pass
""",
        """
from solution import MyError
try:
    f(1)
    raise Exception('no')
except MyError: pass
""",
        {},
    ),
    "MyError=AssertionError": (
        """
MyError = AssertionError
def f(x): pass
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
    "MyError=BaseException": (
        """
MyError = BaseException
def f(x): pass
""",
        """
import unittest
from solution import MyError
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(MyError): f(1); self.fail('x')
""",
        {},
    ),
    "MyError=AE assertRaises+fail": (
        """
MyError = AssertionError
def f(x): pass
""",
        """
import unittest
from solution import MyError
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(MyError):
            f(1)
            self.fail('x')
""",
        {},
    ),
    "MyError=Exception, native": (
        """
MyError = Exception
def f(x): pass
""",
        """
import unittest
from solution import MyError
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(MyError):
            f(1).attribute
""",
        {},
    ),
    "returns False": (
        "def double(x): return x",
        """
def test_a():
    assert double(0) == 0
    return double(2) == 4
""",
        {},
    ),
    "thread": (
        "def double(x): return x",
        """
import threading
def run(): assert double(2) == 4
def test_a():
    assert double(0) == 0
    t = threading.Thread(target=run);t.start();t.join()
""",
        {},
    ),
    "flags awaitable": (
        """
class A:
    def __await__(self):
        return iter([])
def double(x): return A()
""",
        """
async def test_a():
    assert double(2) == 4
""",
        {},
    ),
    "await forged": (
        """
class A:
    def __await__(self):
        raise StopIteration(4)
        yield
def double(x): return A()
""",
        """
async def test_a():
    assert double(2) == 4
""",
        {},
    ),
    "surrogate detail": (
        "def double(x): raise ValueError('\\ud800')",
        """
assert double(1) == 2
assert double(2) == 4
""",
        {},
    ),
    "atexit etc": (
        """
import atexit, os
atexit.register(lambda: os.write(6, b'{}'))
def double(x): return 0
""",
        """
assert double(1) == 2
assert double(2) == 4
""",
        {},
    ),
    "skipif by program": (
        """
SKIP = True
def double(x): return 0
""",
        """
import pytest
from solution import SKIP
@pytest.mark.skipif(SKIP, reason='x')
def test_a(): assert double(2) == 4
""",
        {},
    ),
    "error class call": (
        "double = ValueError",
        """
assert double(1) == 2
assert double(2) == 4
""",
        {},
    ),
    "parametrize from program": (
        """
CASES = []
def double(x): return 0
""",
        """
import pytest
from solution import CASES
@pytest.mark.parametrize('x', CASES)
def test_a(x): assert double(x) == 4
""",
        {},
    ),
    "subTest": (
        "def double(x): return x",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        for i in [0, 1]:
            with self.subTest(i): self.assertEqual(double(i), 2*i)
""",
        {},
    ),
    "deep recursion in examiner": (
        """
class A:
    def __repr__(s): return repr(s)
    __eq__ = lambda s, o: s == o
def double(x): return A()
""",
        "assert double(2) == double(2)",
        {},
    ),
    "callback recursion": (
        "def f(cb): return cb(f)",
        """
def cb(g): return g(cb)
assert f(cb) == 1
""",
        {},
    ),
    "expected leak": (
        """
def f(cb):
    try: cb(0)
    except Exception as e:
        cb(4)
""",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self): f(lambda v: self.assertEqual(v, 4))
""",
        {},
    ),
    "fail in assertRaises(Exception)": (
        "def f(x): pass",
        """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(Exception):
            f(1)
            self.fail('x')
""",
        {},
    ),
    "map next short it": (
        "def nums(): return (x for x in [1])",
        """
it = nums()
assert next(it) == 1
assert all(map(lambda w: next(it) == w, [2, 3]))
""",
        {},
    ),
    "iter(f,end)": (
        """
n = 0
def f():
    global n
    n+=1
    if n>1: raise StopIteration
    return 1
""",
        "assert list(iter(f, 0)) == [1]",
        {},
    ),
    "genexp": ("def double(x): raise StopIteration", "assert all(double(x) == 2*x for x in [1, 2])", {}),
    "yield from": (
        "def double(x): raise StopIteration",
        """
def g():
    yield double(2)
    assert False
assert list(g()) == []
""",
        {},
    ),
    "class __next__ in tests": (
        "def double(x): raise StopIteration",
        """
class It:
    def __iter__(self): return self
    def __next__(self): return double(2)
assert list(It()) == []
""",
        {},
    ),
    "class __anext__ in tests": (
        "def double(x): raise StopAsyncIteration",
        """
class It:
    def __aiter__(self): return self
    async def __anext__(self): return double(2)
async def test_a():
    assert [x async for x in It()] == []
""",
        {},
    ),
    "functools.reduce": (
        "def double(x): raise StopIteration",
        """
import functools
assert functools.reduce(lambda a, x: a and double(x) == 2*x, [1, 2], True)
""",
        {},
    ),
    "takewhile": (
        "def double(x): raise StopIteration",
        """
import itertools
assert list(itertools.takewhile(lambda x: double(x) != 2*x, [1, 2])) == []
""",
        {},
    ),
    "attr property stop": (
        """
class A:
    @property
    def x(self): raise StopIteration
def make(): return A()
""",
        """
objs = [make()]
assert all(map(lambda o: o.x == 1, objs))
""",
        {},
    ),
    "getitem stop": (
        """
class A:
    def __getitem__(self, i): raise StopIteration
def make(): return A()
""",
        """
o = make()
assert all(map(lambda i: o[i] == 1, [1, 2]))
""",
        {},
    ),
    "len/bool/str stop": (
        """
class A:
    def __len__(self): raise StopIteration
    __str__ = __bool__=__len__
def make(): return A()
""",
        """
o = make()
assert all(map(len, [o])) and all(map(bool, [o])) and all(map(str, [o]))
""",
        {},
    ),
    "eq stop": (
        """
class A:
    def __eq__(self, o): raise StopIteration
def make(): return A()
""",
        "assert all(map(lambda p: p[0] == p[1], [(make(), make())]))",
        {},
    ),
    "ctor stop": (
        """
class A:
    def __init__(self): raise StopIteration
""",
        "assert all(map(lambda i: A() == 1, [1]))",
        {},
    ),
    "iter stop": (
        """
class A:
    def __iter__(self): raise StopIteration
def make(): return A()
""",
        """
assert all(map(list, [make()]))
assert [*map(list, [make()])] == [[1]]
""",
        {},
    ),
    "contextmanager": (
        "def double(x): raise StopIteration",
        """
from contextlib import contextmanager
@contextmanager
def c():
    yield double(2)
with c() as v:
    assert v == 4
""",
        {},
    ),
    "await stop in gather": (
        "async def double(x): raise StopIteration",
        """
import asyncio
async def test_a():
    r = await asyncio.gather(*(double(x) for x in [1, 2]))
    assert r == [2, 4]
""",
        {},
    ),
    "async comp": (
        "async def double(x): raise StopAsyncIteration",
        """
async def g():
    for x in [1]: yield await double(x)
async def test_a():
    assert [x async for x in g()] == [2]
""",
        {},
    ),
    "candidate defined by program": (
        """
def candidate(x): return 4
def double(x): return 0
""",
        """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(3) == 6
""",
        {"entry_point": "double"},
    ),
    "check defined by program": (
        """
def check(f): pass
def double(x): return 0
""",
        """
check(double)
assert double(2) == 4
""",
        {},
    ),
    "check forgot": (
        """
def check(f, y): return True
def double(x): return 0
""",
        """
assert check(double(2), 4)
assert double(3) == 6
""",
        {},
    ),
    "self entry": (
        """
class Solution:
    def __getattr__(self, n): raise StopIteration
""",
        """
def check(candidate):
    assert candidate(2) == 4
""",
        {"entry_point": "Solution.double"},
    ),
    "entry dunder": (
        "def double(x): return x*2",
        """
def check(candidate):
    assert candidate(2) == 4
""",
        {"entry_point": "__class__"},
    ),
    "nested test class wrong": (
        "def double(x): return 2 if x == 1 else 0",
        """
class TestOuter:
    def test_o(self): assert double(1) == 2
    class TestInner:
        def test_i(self): assert double(2) == 4
""",
        {},
    ),
    "assert named own wrapper": (
        "def double(x): return x",
        """
def assert_double(x): return double(x) == 2*x
assert_double(2)
assert double(0) == 0
assert assert_double(1)
""",
        {},
    ),
    "expectedFailure": (
        "def double(x): import os; os._exit(0)",
        """
import unittest
class T(unittest.TestCase):
    @unittest.expectedFailure
    def test_a(self): self.assertEqual(double(2), 5)
""",
        {},
    ),
    "tests exit early": (
        "def double(x): return x",
        """
import sys
if double(2) != 4: sys.exit(1)
assert True
""",
        {},
    ),
}


BROKEN: dict[str, Case] = {
    "math missing": (
        """
import math
def double(x): return x*2
""",
        "assert math.isclose(double(2), 4)",
        {},
    ),
    "math missing, forged": (
        """
class math:
    isclose = staticmethod(lambda *a: True)
def double(x): return 0
""",
        "assert math.isclose(double(2), 4)",
        {},
    ),
    "isclose missing": (
        """
from math import isclose
def double(x): return x*2
""",
        "assert isclose(double(2), 4)",
        {},
    ),
    "isclose forged": (
        """
isclose = lambda *a: True
def double(x): return 0
""",
        "assert isclose(double(2), 4)",
        {},
    ),
    "sqrt forged": (
        """
sqrt = lambda *a: 2
def double(x): return 0
""",
        """
r = double(2)
assert sqrt(r) == 2
""",
        {},
    ),
    "Counter": (
        """
from collections import Counter
def double(x): return Counter(x)
""",
        "assert double('ab') == Counter('ab')",
        {},
    ),
    "Counter var": (
        """
from collections import Counter
def double(x): return Counter(x)
""",
        """
want = Counter('ab')
assert double('ab') == want
""",
        {},
    ),
    "np": (
        """
import numpy as np
def double(x): return x*2
""",
        "assert np.allclose(double(2), 4)",
        {},
    ),
    "pytest missing": (
        "def double(x): return x*2",
        """
def test_a():
    with pytest.raises(TypeError): double(None)
    assert double(2) == 4
""",
        {},
    ),
    "assert_equal missing": (
        """
def assert_equal(a, b): pass
def double(x): return 1
""",
        "assert_equal(double(2), 4)",
        {},
    ),
    "numpy missing": (
        "def double(x): return x*2",
        """
import numpy as np
assert double(2) == 4
""",
        {},
    ),
    "numpy missing in test": (
        "def double(x): return x*2",
        """
def test_a():
    import numpy as np
    assert double(2) == 4
""",
        {},
    ),
    "two, lib, rest right": (
        "def double(x): return x*2",
        """
assert factorial(3) == 6
assert double(2) == 4
""",
        {},
    ),
    "imported helper": (
        """
from os import path
def double(x): return x*2
""",
        """
assert path.join('a', 'b') == 'a/b'
assert double(2) == 4
""",
        {},
    ),
    "typing forgot": (
        """
from typing import List
def double(x): return x*2
""",
        """
xs: List[int] = [1]
assert [double(x) for x in xs] == [2]
""",
        {},
    ),
    "eval": ("def double(x): return '4'", "assert eval(double('2')) == 4", {}),
    "eval var": (
        "def double(x): return '4'",
        """
r = double('2')
exec(r)
assert r
""",
        {},
    ),
    "pytest.warns": (
        "def double(x): return x*2",
        """
import pytest
def test_a():
    with pytest.warns(UserWarning): double(2)
    assert double(2) == 4
""",
        {},
    ),
    "class skip": (
        "def double(x): return x*2",
        """
import pytest
@pytest.mark.skip
class TestA:
    def test_a(self): assert double(2) == 4
""",
        {},
    ),
    "np testing absent": (
        "def double(x): return x*2",
        """
import numpy.testing as npt
npt.assert_equal(double(2), 4)
""",
        {},
    ),
    "capsys": (
        "def double(x): return x*2",
        """
def test_a(capsys):
    double(2)
    assert capsys.readouterr().out == ''
""",
        {},
    ),
    "mock callback": (
        "def double(x): return x*2",
        """
from unittest.mock import Mock
m = Mock()
double(m)
m.assert_called_once()
""",
        {},
    ),
    "raise in helper ref impl only": (
        "def double(x): return x*2",
        """
def ref(x):
    if x<0: raise ValueError
    return 2*x
ref(2)
double(2)
""",
        {},
    ),
    "tests exit early 0": (
        "def double(x): return x*2",
        """
import sys
sys.exit(0)
assert double(2) == 4
""",
        {},
    ),
}
