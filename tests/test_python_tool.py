"""The code tool shows what a person's interpreter would show, and gives the same result each time."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.errors import ToolUseError
from whale_envs.tools.python_tool import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("1 + 1", "2\n"),
        ("print(1)\n2", "1\n2\n"),
        ("x = 3", ""),
        ("None", ""),
        ("print('a'); 'b'", "a\n'b'\n"),
        ("(1,\n 2)", "(1, 2)\n"),
        ("for i in range(2):\n    i", ""),
        ("'''words'''", "'words'\n"),
        ("__name__", "'__main__'\n"),
        ("if __name__ == '__main__':\n    print('run')", "run\n"),
        ("print('é ∑ 𝔸')", "é ∑ 𝔸\n"),
        ("print('a', end='')", "a"),
        ("# -*- coding: latin-1 -*-\nprint(len('ab'))", "2\n"),
        ("from __future__ import annotations\nx: undefined = 1\nx", "1\n"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    b: int\nA(1)", "A(b=1)\n"),
        ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))).__name__", "'A'\n"),
        ("from fractions import Fraction\nFraction(1, 3) + 1", "Fraction(4, 3)\n"),
        ("import sys\nsys.stdin.read()", "''\n"),
        ("import wave, tomllib, graphlib\ngraphlib.__name__", "'graphlib'\n"),
        ("import os\nos.getcwd()", "'/'\n"),
        ("import datetime\ndatetime.datetime.fromtimestamp(0)", "datetime.datetime(1970, 1, 1, 0, 0)\n"),
        ("import threading\nr = []\nt = threading.Thread(target=r.append, args=(1,))\nt.start()\nt.join()\nr", "[1]\n"),
        ("def f():\n    global g\n    g = 5\nf()\ng", "5\n"),
        ("[x := 1, x]", "[1, 1]\n"),
    ],
)
def test_output_is_an_interpreters(code, stdout):
    result = run_python(code)
    assert (result.stdout, result.stderr, result.status) == (stdout, "", "ok")


def test_errors_are_an_interpreters():
    result = run_python("def half(x):\n    return x / 0\n\nprint('before')\nhalf(3)\n")
    assert result.stdout == "before\n" and result.status == "error"
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1:3] == ['  File "main.py", line 5, in <module>', "    half(3)"]
    assert lines[3:5] == ['  File "main.py", line 2, in half', "    return x / 0"]
    assert lines[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("code", "last_line", "shown"),
    [
        ("def f(:", "SyntaxError: invalid syntax", 'File "main.py", line 1'),
        ("  x = 1", "IndentationError: unexpected indent", 'File "main.py", line 1'),
        ("import pandas", "ModuleNotFoundError: No module named 'pandas'", "import pandas"),
        ("import sympy.nothing", "ModuleNotFoundError: No module named 'sympy.nothing'", ""),
        ("import whale_envs", "ModuleNotFoundError: No module named 'whale_envs'", ""),
        ("open('data.txt')", "PermissionError: [Errno 1] Operation not permitted: 'data.txt'", ""),
        ("input('? ')", "EOFError: EOF when reading a line", ""),
        ("import sys\nsys.exit('no root found')", "no root found", ""),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e",
            "ValueError: x",
            "direct cause",
        ),
        ("bytearray(1 << 40)", "MemoryError", ""),
    ],
)
def test_error_messages(code, last_line, shown):
    result = run_python(code)
    assert result.stderr.splitlines()[-1] == last_line and shown in result.stderr
    assert result.status == ("memory" if last_line == "MemoryError" else "error")
    assert sys.prefix not in result.stderr and sys.base_prefix not in result.stderr


def test_no_path_of_this_machine_is_shown():
    result = run_python("import sympy, json\nprint(sympy.__file__, json.__file__)\nsympy.sympify('1 +')")
    assert result.status == "error" and "sympy/core/sympify.py" in result.stderr
    for text in (result.stdout, result.stderr):
        assert sys.prefix not in text and sys.base_prefix not in text


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("import sympy\nsympy.factorint(2**67 - 1)", "{193707721: 1, 761838257287: 1}\n"),
        ("from sympy import *\nx = symbols('x')\nsolve(x**2 - 2)", "[-sqrt(2), sqrt(2)]\n"),
        ("from sympy import *\nx = symbols('x')\nintegrate(x * sin(x), (x, 0, pi))", "pi\n"),
        ("from sympy import *\nx = symbols('x')\nlambdify(x, x**2, 'numpy')(3)", "9\n"),
        ("from sympy.ntheory.modular import crt\nint(crt([3, 5], [2, 3])[0])", "8\n"),
        ("from sympy.geometry import Point, Circle\nCircle(Point(0, 0), 2).area", "4*pi\n"),
        (
            "from sympy import diophantine\nfrom sympy.abc import x, y\nlen(diophantine(x + 2*y - 5))",
            "1\n",
        ),
        ("import numpy as np\nnp.linalg.det(np.eye(3)).item()", "1.0\n"),
        ("import numpy as np\nnp.polynomial.Polynomial([2, -3, 1]).roots().tolist()", "[1.0, 2.0]\n"),
        ("import mpmath\nmpmath.mp.dps = 30\nprint(mpmath.pi)", "3.14159265358979323846264338328\n"),
    ],
)
def test_sympy_numpy_and_mpmath_work(code, stdout):
    result = run_python(code)
    assert (result.stdout, result.status) == (stdout, "ok"), result


@pytest.mark.parametrize(
    "code",
    [
        "import random\n[random.random() for _ in range(3)]",
        "import numpy as np\nnp.random.rand(3).tolist()",
        "list({'one', 'two', 'three', 'four', 'five'})",
        "[hash('x'), hash(b'y')]",
    ],
)
def test_the_same_code_prints_the_same(code):
    assert run_python(code).stdout == run_python(code).stdout != ""


def test_calls_share_nothing():
    run_python("import math\nmath.pi = 3\nx = 1")
    assert run_python("import math\nprint(math.pi > 3.1, 'x' in globals())").stdout == "True False\n"


def test_what_was_printed_before_a_time_limit_is_kept():
    result = run_python("print('so far')\nwhile True: pass", timeout=0.5)
    assert (result.stdout, result.stderr, result.status) == ("so far\n", "stopped after 0.5 s\n", "timeout")
    assert 0.5 <= result.seconds < 10


def test_output_is_cut_at_64_kib():
    result = run_python("while True: print('y' * 99)", timeout=60)
    assert result.status == "output" and len(result.stdout) == 65536 and "65536" in result.stderr


def test_memory_limit_is_beyond_what_the_interpreter_needs():
    assert run_python("import sympy\nlen(bytearray(50 << 20))", memory_mb=64).stdout == f"{50 << 20}\n"
    assert run_python("import sympy\nlen(bytearray(80 << 20))", memory_mb=64).status == "memory"


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        ({"code": 7}, "7"), ({"code": None}, "None"), ({"code": b"1"}, "bytes of length 1"),
        ({"code": "x" * (1 << 21)}, "str of length 2097152"), ({"code": "1", "timeout": 0}, "0"),
        ({"code": "1", "timeout": -1}, "-1"), ({"code": "1", "timeout": 1e9}, "1000000000"),
        ({"code": "1", "timeout": float("nan")}, "nan"), ({"code": "1", "timeout": "5"}, "str of length 1"),
        ({"code": "1", "timeout": True}, "True"), ({"code": "1", "memory_mb": 0}, "0"),
        ({"code": "1", "memory_mb": 10**9}, "1000000000"), ({"code": "1", "memory_mb": 1.5}, "1.5"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, quoted):
    with pytest.raises(ToolUseError, match="run_python takes") as caught:
        run_python(**arguments)
    assert quoted in str(caught.value)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_any_text_has_a_result(code):
    result = run_python(code, timeout=10)
    assert result.status in ("ok", "error", "timeout", "memory", "output", "killed")


@settings(max_examples=20, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_the_last_value_is_shown_as_its_repr(value):
    result = run_python(f"x = {value!r}\nx")
    if "\ud800" <= max(repr(value)) <= "\udfff":
        return
    assert result.stdout == ("" if value is None else f"{value!r}\n")
