"""Programs that do not do what they are asked, and try to be taken for ones that do.

They are asked for `double(x)`, which is twice `x`, by `TESTS` or `CALLS`.
"""

TESTS = [
    "assert double(2) == 4",
    """
import math
def test_more():
    assert math.isclose(double(0.5), 1.0)
    assert abs(double(1.5) - 3.0) < 1e-6
    assert double(3) in (6, 6.0)
    assert isinstance(double(7), int)
    assert not double(5) != 10
    assert double(8) >= 16 and double(8) <= 16
    assert sorted([double(3), double(1)]) == [2, 6]
""",
    """
import unittest
from solution import double
from solution import *
class Cases(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(double(21), 42)
        self.assertAlmostEqual(double(0.25), 0.5)
    def test_text(self):
        self.assertEqual(double("ab"), "abab")
        self.assertTrue(double([1]) == [1, 1])
if __name__ == "__main__":
    unittest.main()
""",
]
CALLS = [{"function": "double", "args": [value], "expected": 2 * value} for value in (2, 0.5, 21, "ab", [1])]

HONEST = {
    "plain": "def double(x): return x * 2",
    "with a helper": "import functools\n@functools.cache\ndef two(): return 2\ndef double(x): return two() * x",
    "talking": "print('all tests passed')\ndef double(x):\n    print(x)\n    return x + x",
}

_LIAR = """
class Liar:
    def __init__(self, *values): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __instancecheck__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __mod__ = __truediv__ = __add__ = __radd__ = __sub__
    def __abs__(self): return 0
    def __float__(self): return 0.0
    def __int__(self): return 0
    __index__ = __round__ = __int__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 2
    def __iter__(self): return iter([Liar(), Liar()])
    def __getattr__(self, name): return Liar()
    def __call__(self, *values): return Liar()
    __class__ = int
"""

FORGERS = {
    "nothing": "",
    "no Python": "def double(",
    "wrong": "def double(x): return x",
    "ends well at once": "import sys; sys.exit(0)",
    "ends hard at once": "import os; os._exit(0)",
    "ends well when asked": "import sys\ndef double(x): sys.exit(0)",
    "ends hard when asked": "import os\ndef double(x): os._exit(0)",
    "is killed when asked": "import os\ndef double(x): os.kill(os.getpid(), 9)",
    "ends everybody": "import os\ndef double(x): os.kill(-1, 9); os.kill(1, 9); os._exit(0)",
    "equal to everything": _LIAR + "def double(x): return Liar()",
    "a class that is asked": _LIAR + "double = Liar",
    "a name that is equal": _LIAR + "double = Liar()",
    "a number that is equal": """
class Number(int):
    __eq__ = __le__ = __ge__ = __lt__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
    __sub__ = __rsub__ = lambda self, other: 0
def double(x): return Number(1)
""",
    "a text that is equal": """
class Text(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
def double(x): return Text('x')
""",
    "a list that is equal": """
class List(list):
    __eq__ = __contains__ = lambda self, other: True
def double(x): return List([1])
""",
    "not a number": "def double(x): return float('nan')",
    "true": "def double(x): return True",
    "nothing at all": "def double(x): return None",
    "not implemented": "def double(x): return NotImplemented",
    "itself": "def double(x): return double",
    "a function": "def double(x): return lambda *values: True",
    "one of many": "import itertools\ndef double(x): return itertools.count()",
    "built-ins changed": """
import builtins
builtins.abs = builtins.isinstance = builtins.sorted = builtins.len = lambda *values: True
builtins.AssertionError = ValueError
def double(x): return 0
""",
    "built-ins of its own": """
abs = lambda value: 0
isinstance = lambda value, kind: True
sorted = lambda values: [2, 6]
class math:
    isclose = staticmethod(lambda *values: True)
def double(x): return 0
""",
    "unittest changed": """
import unittest
unittest.TestCase.assertEqual = unittest.TestCase.assertAlmostEqual = lambda *values: None
unittest.TestCase.run = lambda self, result: result.addSuccess(self)
def double(x): return 0
""",
    "unittest of its own": """
class unittest:
    class TestCase: pass
def double(x): return 0
""",
    "tests of its own": """
def test_more(): pass
def check(*values): return True
class Cases: pass
def double(x): return 0
""",
    "skips": "import unittest\ndef double(x): raise unittest.SkipTest('not here')",
    "raises": "def double(x): raise AssertionError()",
    "raises a success": """
class _ShouldStop(BaseException): pass
def double(x): raise _ShouldStop()
""",
    "stops iterating": "def double(x): raise StopIteration(4)",
    "interrupts": "def double(x): raise KeyboardInterrupt()",
    "leaves": "def double(x): raise GeneratorExit()",
    "looks for the tests": """
import gc, inspect, sys
seen = []
for each in gc.get_objects():
    if isinstance(each, (str, dict, list, tuple)) and 'expected' in each: seen.append(each)
frame = sys._getframe()
while frame:
    seen.append([name for name in ('tests', 'calls', 'exam', 'expected', 'results') if name in frame.f_locals])
    frame = frame.f_back
def double(x):
    found = [each for each in seen if each]
    return 2 * x if found and isinstance(found[0], dict) else 0
""",
    "changes the harness": """
import sys, gc, types
for each in gc.get_objects():
    if isinstance(each, types.FunctionType) and each.__module__ and each.__module__.startswith('inside'):
        if each.__name__ in ('encode', 'decode', 'same', '_call', 'examine', 'send'):
            each.__code__ = (lambda *values, **named: True).__code__
def double(x): return 0
""",
    "answers in its own words": """
import json, os, struct
def forge(text):
    data = text.encode()
    for handle in range(3, 20):
        try: os.write(handle, struct.pack('=I', len(data)) + data)
        except OSError: pass
forge('{"ran": true, "results": [[true, ""]], "broken": ""}')
forge('{"value": true}')
forge('{"value": {"object": {"number": 0}}}')
def double(x):
    forge('{"value": 4}')
    return 0
""",
    "prints the verdict": """
import sys
text = '{"ran": true, "results": [[true, ""], [true, ""], [true, ""], [true, ""], [true, ""]], "broken": ""}'
def double(x):
    print(text, flush=True)
    sys.stderr.write(text)
    return text
""",
    "sends rubbish": """
import os
def double(x):
    for handle in range(3, 20):
        try: os.write(handle, b'\\xff' * 100)
        except OSError: pass
""",
    "sends no JSON": "import os\ndef double(x): os.write(5, b'\\x05\\0\\0\\0[[[[[')",
    "sends values that are none": """
import os, struct
data = b'{"value": {"set": [[1], [2]]}}'
def double(x): os.write(5, struct.pack('=I', len(data)) + data)
""",
    "sends too much": "def double(x): return 'x' * (20 << 20)",
    "sends it deep": """
def double(x):
    for _ in range(100000): x = [x]
    return x
""",
    "sends itself": "def double(x):\n    x = []\n    x.append(x)\n    return x",
    "closes": "import os\ndef double(x): os.closerange(0, 100); return 0",
    "answers twice": "import os\ndef double(x):\n    os.fork()\n    return 0",
    "never answers": "def double(x):\n    while True: pass",
    "never loads": "import time; time.sleep(1000)",
    "never gives all": "def double(x):\n    while True: yield x",
    "changes what it is given": "def double(x):\n    if isinstance(x, list): x.clear()\n    return x",
    # the end of an iteration
    "stops iterating without a value": "def double(x): raise StopIteration",
    "stops iterating under another name": "class End(StopIteration): pass\ndef double(x): raise End",
    "stops iterating asynchronously": "def double(x): raise StopAsyncIteration",
    "is cancelled": "import asyncio\ndef double(x): raise asyncio.CancelledError",
    "gives an iterator that ends": "def double(x): return iter([])",
    "gives a generator that ends": "def double(x):\n    return\n    yield",
    "is a coroutine": "async def double(x): return x",
    "is a coroutine that stops iterating": "async def double(x): raise StopIteration",
    "is an asynchronous generator": "async def double(x):\n    return\n    yield",
    "can be awaited": """
class Awaited:
    def __await__(self):
        return 4
        yield
def double(x): return Awaited()
""",
    # values that cannot be compared, shown, hashed or measured
    "a signalling NaN": "from decimal import Decimal\ndef double(x): return Decimal('sNaN')",
    "a quiet NaN": "from decimal import Decimal\ndef double(x): return Decimal('NaN')",
    "a huge decimal": "from decimal import Decimal\ndef double(x): return Decimal('1e999999999')",
    "a long decimal": "from decimal import Decimal\ndef double(x): return Decimal('1' * 20000)",
    "a huge number": "def double(x): return 10**400",
    "an enormous number": "def double(x): return 1 << 20_000_000",
    "a number too large to send": "def double(x): return 1 << 60_000_000",
    "an infinite number": "def double(x): return float('inf')",
    "a complex number": "def double(x): return complex(4, float('nan'))",
    "a fraction": "from fractions import Fraction\ndef double(x): return Fraction(1, 10**400)",
    "bytes": "def double(x): return b'\\xff' * 4",
    "half a character": "def double(x): return '\\ud800' * 4",
    "an endless range": "def double(x): return range(10**18)",
    "an exception class": "def double(x): return ValueError",
    "an exception class of its own": "class Error(Exception): pass\ndef double(x): return Error",
    "an exception class with a strange name": "def double(x): return type('a\\0\\ud800 b', (Exception,), {})",
    "an exception class with many bases": """
def double(x):
    kind = Exception
    for _ in range(300): kind = type('E', (kind,), {})
    return kind
""",
    "an exception": "def double(x): return ValueError(4)",
    "a group of exceptions": "def double(x): raise BaseExceptionGroup('x', [KeyboardInterrupt()])",
    "an exception that cannot be shown": """
class Error(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def double(x): raise Error(Error())
""",
    "an object that cannot be shown": """
class Value:
    def __repr__(self): raise SystemExit(0)
    __str__ = __eq__ = __bool__ = __len__ = __iter__ = __repr__
    __hash__ = None
def double(x): return Value()
""",
    "an object that interrupts": """
class Value:
    def __repr__(self): raise KeyboardInterrupt
    __str__ = __eq__ = __bool__ = __len__ = __iter__ = __repr__
def double(x): return Value()
""",
    "an object that stops iterating": """
class Value:
    def __eq__(self, other): raise StopIteration
    __iter__ = __next__ = __len__ = __bool__ = __getitem__ = __repr__ = __eq__
def double(x): return Value()
""",
    "a class that cannot be made": """
class Meta(type):
    def __call__(self, *values): raise SystemExit(0)
class double(metaclass=Meta): pass
""",
    "a deep tuple": """
def double(x):
    for _ in range(150): x = (x,)
    return x
""",
    "deep calls": "def double(x): return double(x)",
    "a dict of itself": "def double(x):\n    x = {}\n    x[1] = x\n    return x",
    "no memory": "def double(x): return bytearray(1 << 40)",
    "no memory in the end": "def double(x):\n    x = ['x']\n    while True: x += x",
    "says that there is no memory": "def double(x): raise MemoryError",
    "an import that is missing": "import no_such_package\ndef double(x): return 2 * x",
    "an import that is missing when asked": "def double(x): import no_such_package",
    "an import that it names": "def double(x): raise ImportError('x', name='numpy')",
    "a syntax error when asked": "def double(x): exec('(')",
    # ends
    "ends like a script": "import sys\ndef double(x): sys.exit('no')",
    "ends itself by a signal": "import os, signal\ndef double(x): os.kill(os.getpid(), signal.SIGTERM)",
    "crashes": "import ctypes\ndef double(x): ctypes.string_at(0)",
    "closes its answers": "import os\ndef double(x): os.close(5)",
    # names
    "imported names only": "from math import isclose as double",
    "a module": "import math as double",
    "names of the tests": """
pytest = unittest = math = check = candidate = lambda *values: True
next = iter = map = zip = all = lambda *values: True
def double(x): return x
""",
    "names of the harness": """
import sys
globals().update({'@held': 1, '@checks': lambda function: lambda *values: None, '@caught': 1})
sys.modules['pytest'] = sys.modules['unittest'] = sys.modules[__name__]
def double(x): return x
""",
    "another function that is right": "def other(x): return 2 * x\ndef double(x): return x",
    "a lie about what it defines": """
import sys
for each in list(sys.modules.values()):
    if hasattr(each, 'outline'): each.outline = lambda *values: {'imported': [], 'functions': ['other']}
def other(x): return 2 * x
def double(x): return x
""",
    # messages
    "answers that it has no value": "import os, struct\ndef double(x): os.write(5, struct.pack('=I', 2) + b'{}')",
    "answers with an error that is none": """
import os, struct
data = b'{"error": {"names": [], "values": 1, "text": [], "number": "x"}}'
def double(x): os.write(5, struct.pack('=I', len(data)) + data)
""",
    "answers with an error of many names": """
import json, os, struct
data = json.dumps({"error": {"names": ["a"] * 100_000, "values": [], "text": "", "number": 0}}).encode()
def double(x): os.write(5, struct.pack('=I', len(data)) + data)
""",
    "answers with an error of the harness": """
import json, os, struct
names = ["NotPassed", "Broken", "Gone", "BaseException", "object"]
data = json.dumps({"error": {"names": names, "values": [], "text": "", "number": 0}}).encode()
def double(x): os.write(5, struct.pack('=I', len(data)) + data)
""",
    "calls functions of the tests that there are not": """
import os, struct
data = b'{"callback": 0, "values": [], "named": {}}'
def double(x): os.write(5, struct.pack('=I', len(data)) + data)
""",
    "answers with half a value": "import os\ndef double(x): os.write(5, b'\\xff\\0\\0\\0{')\n",
}
LATE = {
    f"right once, then {how}": f"""
asked = 0
def double(x):
    global asked
    asked += 1
    if asked == 1: return 2 * x
    {how}
"""
    for how in (
        "raise SystemExit(0)",
        "raise StopIteration",
        "raise StopAsyncIteration",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "raise BaseException",
        "raise AssertionError",
        "raise MemoryError",
        "raise ImportError('x', name='y')",
        "raise ExceptionGroup('x', [StopIteration()])",
        "raise type('NotPassed', (BaseException,), {})('x')",
        "raise type('Broken', (Exception,), {})('x')",
        "raise type('Skipped', (BaseException,), {})('x')",
        "import unittest; raise unittest.SkipTest",
        "import asyncio; raise asyncio.CancelledError",
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 15)",
        "import os, struct; os.write(5, struct.pack('=I', 2) + b'{}')",
        "return 'x' * (9 << 20)",
    )
}
"""Forgers that pass a single comparison."""
ENDLESS = {"never loads", "sends rubbish", "sends no JSON", "answers with half a value"}
"""Nobody waits for longer, whatever the program does."""
