"""What the built-in tools load when they are imported."""

import subprocess
import sys


def test_importing_the_built_ins_loads_no_nbformat() -> None:
    code = "import sys, forge_tools.tools; print([n for n in ('nbformat', 'fastjsonschema', 'jsonschema') if n in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded == "[]\n"
