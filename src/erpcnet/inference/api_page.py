"""The page at /docs: what the REST interface takes and gives, made from its description, of nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>ERPCNet: the interface</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
h2 b { display: inline-block; min-width: 4.5rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { overflow: auto; padding: .7rem; border: 1px solid #8886; border-radius: .4rem; }
table { border-collapse: collapse; } td { padding: .1rem 1.2rem .1rem 0; vertical-align: top; }
</style></head><body>
"""


def api_page(schema: Mapping[str, Any], address: str) -> str:
    """A page of HTML.

    Args:
        schema: The OpenAPI description.
        address: Where the interface is asked, for the examples.
    """
    parts = [
        HEAD,
        "<h1>The interface</h1><p>The same as an <a href='openapi.json'>OpenAPI description</a>. Every refusal is a "
        "JSON object with a sentence in <code>error</code>.</p>",
    ]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            parts += _operation(schema, method, path, operation, address)
    return "".join(parts) + "</body></html>\n"


def _operation(
    schema: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any], address: str
) -> Iterator[str]:
    yield f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2>"
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    given = operation.get("parameters", [])
    if given:
        rows = "".join(
            f"<tr><td><code>{escape(one['name'])}</code></td><td>in the {escape(one['in'])}</td>"
            f"<td>{escape(_values(one['schema']))}</td></tr>"
            for one in given
        )
        yield f"<table>{rows}</table>"
    content = operation.get("requestBody", {}).get("content", {})
    body = next((_example(schema, one["schema"]) for kind, one in content.items() if kind == "application/json"), None)
    yield f"<pre>{escape(_curl(method, address + path, body, 'application/octet-stream' in content))}</pre>"
    answer = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    if answer:
        yield f"<p>Answers</p><pre>{escape(_example(schema, answer))}</pre>"


def _curl(method: str, url: str, body: str | None, binary: bool) -> str:
    words = [
        "curl",
        *([] if method in ("get", "post") and (body or binary or method == "get") else ["-X", method.upper()]),
    ]
    if binary:
        words += ["--data-binary", "@picture.jpg"]
    if body is not None:
        words += ["-H", "'Content-Type: application/json'", "-d", f"'{body}'"]
    return " ".join([*words, f"'{url}'"])


def _values(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"{' or '.join(map(str, schema['enum']))}" + (
            f", by default {schema['default']}" if "default" in schema else ""
        )
    return str(schema.get("type", ""))


def _example(schema: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """What a value of a schema looks like: names of fields with the kinds of their values."""
    if "$ref" in part:
        return _example(schema, schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]])
    if "anyOf" in part:
        return " | ".join(_example(schema, one) for one in part["anyOf"])
    if "const" in part:
        return f'"{part["const"]}"'
    kind = part.get("type")
    if kind == "object" and "properties" in part:
        fields = ", ".join(f'"{name}": {_example(schema, one)}' for name, one in part["properties"].items())
        return "{" + fields + "}"
    if kind == "object":
        return '{"NAME": ' + _example(schema, part.get("additionalProperties") or {"type": "number"}) + "}"
    if kind == "array" and "prefixItems" in part:
        return "[" + ", ".join(_example(schema, one) for one in part["prefixItems"]) + "]"
    if kind == "array":
        return "[" + _example(schema, part["items"]) + ", ...]"
    return {"string": '"TEXT"', "number": "0.5", "integer": "1", "boolean": "true", "null": "null"}.get(
        str(kind), "..."
    )
