"""Run a lesson, and say which modules it has imported: python list_imports.py LESSON ARGUMENTS"""

import runpy
import sys

lesson = sys.argv[1]
sys.argv = sys.argv[1:]
runpy.run_path(lesson, run_name="__main__")
print("imported:", *sys.modules)
