"""What the readers of a harness's source share."""

from __future__ import annotations

import ast

from whale_envs.harness.audit.finding import Finding


def found(node: ast.AST, reason: str) -> Finding:
    """A static finding at a node."""
    return Finding("static", reason, f"line {getattr(node, 'lineno', 1)}")


def fold(node: ast.AST) -> str | None:
    """The string (or bytes, read as one) that an expression writes out in constants; None for anything else."""
    if isinstance(node, ast.Constant):
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        return value if isinstance(value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = fold(node.left), fold(node.right)
        return left + right if left is not None and right is not None else None
    if isinstance(node, ast.JoinedStr):
        parts = [fold(v) if isinstance(v, ast.Constant) else " | " for v in node.values]
        return "".join(p or "" for p in parts)
    return None
