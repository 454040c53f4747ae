#!/usr/bin/env python3
"""Writes the measured figures into the documents: docs/results.md, and the table in README.md.

    report.py            writes both
    report.py --check    writes nothing; fails if either differs from bench/results

Measured figures are not typed by hand. They are in a result file, and this program copies them.
"""

import datetime
import difflib
import json
import pathlib
import sys
from typing import Any

import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PLANS = ROOT / "bench" / "plans"

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

# Rows of the README's table: sentence, plan and target. At least one row is a missed target.
README_ROWS = [
    (
        "One TCP stream over two links, of what plain TCP could carry on both",
        "link-stream",
        "goodput_vs_plain_ceiling",
    ),
    ("Longest gap of a stream when a cable is pulled, ms", "link-failover", "carrier_gap_ms"),
    ("Burst after a pause across a WAN, of the ideal time", "tcp-restart", "median_vs_ideal"),
    (
        "All-reduce of 1 MiB over three switches, of the MPI library's best speed",
        "coll-allreduce",
        "three_switches_vs_best_rival",
    ),
    ("64-byte message over the device, µs added one way", "link-latency", "added_one_way_64_bytes_us"),
]

# Order of the layers in docs/results.md, by the plans' prefixes.
LAYERS = [
    ("link", "Multilink device"),
    ("tcp", "TCP"),
    ("coll", "Collectives"),
    ("wind", "Wind"),
    ("dsm", "Shared memory"),
    ("shmem", "OpenSHMEM"),
    ("topo", "Discovery"),
    ("lab", "The lab itself"),
]


def main() -> int:
    is_check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not is_check:
        print(f'report.py: unknown arguments {sys.argv[1:]}: expected none, or "--check"', file=sys.stderr)
        return 2
    results = read_results()
    readme = ROOT / "README.md"
    wanted = {ROOT / "docs" / "results.md": report(results), readme: with_table(readme.read_text(), results)}
    stale = 0
    for path, text in wanted.items():
        present = path.read_text() if path.exists() else ""
        if text == present:
            continue
        if not is_check:
            path.write_text(text)
            continue
        stale += 1
        name = str(path.relative_to(ROOT))
        changes = difflib.unified_diff(
            present.splitlines(), text.splitlines(), name, "bench/results", lineterm="", n=0
        )
        print("\n".join(list(changes)[:20]))
        print(f"{name} disagrees with bench/results: run `make figures`")
    return 1 if stale else 0


def read_results() -> dict[str, dict[str, Any]]:
    """Returns the summary of each result file, its first line, by the plan's name."""
    results = {}
    for path in sorted(RESULTS.glob("*.ndjson")):
        with path.open() as lines:
            results[path.stem] = json.loads(lines.readline())
    return results


def read_plan(name: str) -> dict[str, Any]:
    return tomllib.loads((PLANS / f"{name}.toml").read_text())


def with_table(readme: str, results: dict[str, dict[str, Any]]) -> str:
    """Returns the README with its table of results replaced."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    lines = ["| | measured | target | plan |", "|---|---|---|---|"]
    for sentence, plan, target in README_ROWS:
        check = next(check for check in results[plan]["checks"] if check["name"] == target)
        mark = "" if check["pass"] else " (missed)"
        value, link = number(check["value"]), f"[`{plan}`](bench/plans/{plan}.toml)"
        lines.append(f"| {sentence} | **{value}** | {bound(check)}{mark} | {link} |")
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after


def report(results: dict[str, dict[str, Any]]) -> str:
    """Returns the text of docs/results.md."""
    checks = [check for result in results.values() for check in result["checks"]]
    met = sum(check["pass"] for check in checks)
    lines = [
        "# Results",
        "",
        "`bench/figures/report.py` writes this page from [`bench/results/`](../bench/results).",
        "Do not edit it.",
        "",
        f"{met} of {len(checks)} targets are met. Each plan is run with `kumi bench PLAN`. A value is",
        "the unfavourable end of a one-sided 95 % confidence interval over the repetitions, or their",
        "median where the plan says so. It is the worst over the message sizes of the target. A value",
        "with an interval can lie outside the range of the figure itself.",
        "",
        "## Summary",
        "",
        "| plan | shows | met | commit |",
        "|---|---|---|---|",
    ]
    ordered = [(title, name) for prefix, title in LAYERS for name in results if name.startswith(prefix + "-")]
    missing = sorted(set(results) - {name for _, name in ordered})
    if missing:
        raise SystemExit(f"report.py: no layer has {', '.join(missing)}: add their prefix to LAYERS")
    for _, name in ordered:
        result = results[name]
        passed = sum(check["pass"] for check in result["checks"])
        count = len(result["checks"])
        lines.append(
            f"| [{name}](#{name}) | {read_plan(name)['shows']} | {passed} of {count} | {commit(result)} |"
        )
    layer = ""
    for title, name in ordered:
        if title != layer:
            layer = title
            lines += ["", f"## {title}"]
        lines += section(name, results[name])
    return "\n".join(lines) + "\n"


def section(name: str, result: dict[str, Any]) -> list[str]:
    plan = read_plan(name)
    day = datetime.datetime.fromtimestamp(result["manifest"]["begun_unix_s"], datetime.timezone.utc).date()
    cpus = result["manifest"]["cpus"]
    lines = [
        "",
        f"### {name}",
        "",
        f"Shows that {plan['shows']}." + (f" Reproduces {plan['paper']}." if "paper" in plan else ""),
        f"Commit {commit(result)}, {day}, kernel {result['manifest']['kernel']}, processors: {cpus}.",
        "",
        "| target | value | wanted | |",
        "|---|---|---|---|",
    ]
    for check in result["checks"]:
        mark = "met" if check["pass"] else "**missed**"
        lines.append(f"| {check['name']} | {number(check['value'])} | {bound(check)} | {mark} |")
    if (RESULTS / f"{name}.svg").exists():
        lines += ["", f"![Figure of {name}](../bench/results/{name}.svg)"]
    lines += details(plan, result)
    return lines


def details(plan: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Returns medians of the targets' figures, for each case, variant and message size."""
    figures: dict[str, list[str]] = {}
    for target in plan.get("target", []):
        others = target.get("mean_with", []) + target.get("each_of", [])
        for case in [target.get("case", ""), *others]:
            of_case = figures.setdefault(case, [])
            if target["figure"] not in of_case:
                of_case.append(target["figure"])
    lines: list[str] = []
    for case, names in figures.items():
        rows = [row for row in result["rows"] if row["case"] == case]
        names = [name for name in names if any(name in row for row in rows)]
        if not rows or not names:
            continue
        has_sizes = any(row.get("size_bytes") for row in rows)
        heads = ["variant"] + (["bytes"] if has_sizes else []) + [label(name) for name in names]
        lines += ["", f"**{case}**", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for row in rows:
            cells = [row["variant"]] + ([str(row.get("size_bytes", ""))] if has_sizes else [])
            cells += [number(scaled(name, row[name])) if name in row else "" for name in names]
            lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return []
    return ["", "<details><summary>Medians by variant</summary>", *lines, "", "</details>"]


def label(figure: str) -> str:
    return figure.removesuffix("_bps") + " (Mb/s)" if figure.endswith("_bps") else figure


def scaled(figure: str, value: float) -> float:
    return value / 1e6 if figure.endswith("_bps") else value


def number(value: float | None) -> str:
    """Returns a value with at most four significant digits."""
    if value is None:
        return "no value"
    if abs(value) >= 1e6:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
    if abs(value) >= 1000 or value == int(value):
        return str(round(value))
    return f"{value:.3g}"


def bound(check: dict[str, Any]) -> str:
    sign = {">=": "≥", "<=": "≤", "==": "=", ">": ">", "<": "<"}[check["op"]]
    return f"{sign} {number(check['target'])}"


def commit(result: dict[str, Any]) -> str:
    return f"`{result['manifest']['commit'].removesuffix('-dirty')}`"


if __name__ == "__main__":
    sys.exit(main())
