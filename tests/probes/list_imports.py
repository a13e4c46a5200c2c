"""Run a lesson, and say which modules it has imported: python list_imports.py LESSON ARGUMENTS"""

import runpy
import sys
from pathlib import Path

lesson = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(lesson).parent))
runpy.run_path(lesson, run_name="__main__")
print("imported:", *sys.modules)
