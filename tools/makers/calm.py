"""How calm the code is, a row for each folder: python -m tools.makers.calm

The columns: comprehensions per 10 lines of a function, comprehensions inside comprehensions, products with a
condition (`[x] * (n > 1)`), functions of more than 40 lines, functions with more than three returns, and
comments per 100 lines. Nothing enforces them: they show where a reader has to unfold the code.
"""

import ast
import io
import subprocess
import tokenize
from dataclasses import dataclass
from pathlib import Path

from tools.lessons import ROOT

FOLDERS = {
    "lessons": "lessons/[01]*.py",
    "workload, parts": "lessons/workload/*.py lessons/parts/*.py",
    "port, launch, planner": "lessons/port/*.py lessons/launch/*.py lessons/planner/*.py",
    "recipes, frameworks, older": "lessons/recipes/*.py lessons/frameworks/*.py lessons/older/*.py",
    "solutions": "solutions/*.py",
    "show": "notebooks/show/*.py",
    "tools": "tools/*.py tools/testbed/*.py",
    "makers": "tools/makers/*.py tools/makers/*/*.py tools/bench/*.py tools/gpu/*.py tools/site/*.py",
    "grader": "tests/exercises/*.py tests/exercises/grader/*.py tests/exercises/sandbox/*.py",
    "checks": "tests/exercises/*/test_*.py",
    "tests": "tests/*.py tests/lessons/*.py tests/notebooks/*.py tests/tools/*.py",
    "helpers, probes": "tests/helpers/*.py tests/probes/*.py",
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Measures:
    lines: int = 0
    comments: int = 0
    lines_of_functions: int = 0
    comprehensions: int = 0
    nested: int = 0
    products: int = 0
    long_functions: int = 0
    many_returns: int = 0

    def add(self, text: str) -> None:
        self.lines += len(text.splitlines())
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                self.comments += 1
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                self.add_function(node)
            if isinstance(node, COMPREHENSIONS) and contains(node, COMPREHENSIONS):
                self.nested += 1
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and has_a_condition(node):
                self.products += 1
        for function in outermost_functions(tree):
            self.lines_of_functions += function.end_lineno - function.lineno + 1
            for node in ast.walk(function):
                if isinstance(node, COMPREHENSIONS):
                    self.comprehensions += 1

    def add_function(self, function: ast.FunctionDef) -> None:
        if function.end_lineno - function.lineno + 1 > 40:
            self.long_functions += 1
        returns = 0
        for node in ast.walk(function):
            if isinstance(node, ast.Return):
                returns += 1
        if returns > 3:
            self.many_returns += 1

    def row(self) -> str:
        per_ten = 10 * self.comprehensions / max(1, self.lines_of_functions)
        comments = 100 * self.comments / max(1, self.lines)
        return (
            f"{self.lines:7,} | {per_ten:5.2f} | {self.nested:6} | {self.products:8} | "
            f"{self.long_functions:4} | {self.many_returns:7} | {comments:8.1f}"
        )


def contains(node: ast.AST, kinds: tuple) -> bool:
    """Whether there is a node of these kinds somewhere inside this one."""
    return any(isinstance(inner, kinds) and inner is not node for inner in ast.walk(node))


def has_a_condition(product: ast.BinOp) -> bool:
    return isinstance(product.left, ast.Compare | ast.BoolOp) or isinstance(
        product.right, ast.Compare | ast.BoolOp
    )


def outermost_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    found = []
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS):
            found.append(node)
        elif isinstance(node, ast.ClassDef):
            waiting.extend(node.body)
    return found


def measure(patterns: str) -> Measures:
    """The files that git knows, because an environment may lie in the same folder."""
    globs = [f":(glob){pattern}" for pattern in patterns.split()]  # else a star goes into folders, too
    listed = subprocess.run(["git", "ls-files", *globs], cwd=ROOT, capture_output=True, text=True)
    measures = Measures()
    for name in listed.stdout.splitlines():
        if name.endswith(".py"):
            measures.add(Path(ROOT, name).read_text())
    return measures


def main() -> None:
    print(f"{'':27} |   lines | comp. | nested | products | > 40 | returns | comments")
    for name, patterns in FOLDERS.items():
        print(f"{name:27} | {measure(patterns).row()}")


if __name__ == "__main__":
    main()
