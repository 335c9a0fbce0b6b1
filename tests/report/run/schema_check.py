"""A validator for the part of JSON Schema that run.schema.json uses; it refuses words it does not know."""

from __future__ import annotations

from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
SILENT = {"$schema", "$id", "$defs", "title", "description", "examples"}


def errors(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "$") -> list[str]:
    """Everything in which the value breaks the schema."""
    found: list[str] = []
    for word, rule in schema.items():
        if word not in SILENT:
            found += CHECKS[word](value, rule, schema, root, path)
    return found


def _is(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        allowed = (int, float) if kind == "number" else int
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, TYPES[kind])


def _type(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    kinds = rule if isinstance(rule, list) else [rule]
    return [] if any(_is(value, kind) for kind in kinds) else [f"{path}: {value!r} is not {rule}"]


def _required(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    return [f"{path}: no {name}" for name in rule if isinstance(value, dict) and name not in value]


def _properties(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [e for name in rule if name in value for e in errors(value[name], rule[name], root, f"{path}.{name}")]


def _additional(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    others = [name for name in value if name not in schema.get("properties", {})]
    return [e for name in others for e in errors(value[name], rule, root, f"{path}.{name}")]


def _items(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    if not isinstance(value, list):
        return []
    return [e for i, item in enumerate(value) for e in errors(item, rule, root, f"{path}[{i}]")]


def _ref(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    return errors(value, root["$defs"][rule.removeprefix("#/$defs/")], root, path)


def _any_of(value: Any, rule: Any, schema: Any, root: Any, path: str) -> list[str]:
    tried = [errors(value, one, root, path) for one in rule]
    return [] if any(not one for one in tried) else max(tried, key=len)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


CHECKS: dict[str, Any] = {
    "type": _type,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "$ref": _ref,
    "anyOf": _any_of,
    "const": lambda v, rule, s, r, path: [] if v == rule else [f"{path}: {v!r} is not {rule!r}"],
    "enum": lambda v, rule, s, r, path: [] if v in rule else [f"{path}: {v!r} is none of {rule}"],
    "minimum": lambda v, rule, s, r, path: [f"{path}: {v} < {rule}"] if _number(v) and v < rule else [],
    "maximum": lambda v, rule, s, r, path: [f"{path}: {v} > {rule}"] if _number(v) and v > rule else [],
}
