#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the output of `kumi demo` as a terminal recording: an animated SVG.

    kumi demo > bench/results/demo.txt
    bench/figures/recording.py bench/results/demo.txt bench/results/demo.svg

Each step of the demo prints the second at which it began. The recording shows the lines in that
order, SPEED times as fast, and starts again after PAUSE_S.
"""

import re
import sys
from html import escape
from pathlib import Path

SPEED = 5
PAUSE_S = 8
COLUMNS = 112
CHAR_PX, LINE_PX, MARGIN_PX, TITLE_PX = 8.4, 19, 16, 28
BACKGROUND, TEXT, FAINT, KEPT, MISSED = "#1d2330", "#d8dee9", "#8b95a7", "#8fd19e", "#ff9e80"

BEGAN = re.compile(r"\((\d+) s\)$")
AT = re.compile(r" at (\d+(?:\.\d+)?) s;")


def timed(lines):
    """Returns (second, line) for each line. A line without a time follows the one before it."""
    found, now_s, step_s = [], 0.0, 0.0
    for line in lines:
        if began := BEGAN.search(line):
            now_s = step_s = float(began.group(1))
            line = BEGAN.sub("", line).rstrip()
        elif at := AT.search(line):
            now_s = step_s + float(at.group(1))
        found.append((now_s, line))
    return found


def coloured(line):
    """Returns the line as SVG text, with its verdict in colour."""
    text = escape(line[:COLUMNS])
    for verdict, colour in (("kept", KEPT), ("missed", MISSED), ("void", MISSED)):
        text = re.sub(rf"\b{verdict}$", f'<tspan fill="{colour}">{verdict}</tspan>', text)
    if line.startswith("["):
        text = f'<tspan fill="{FAINT}">{text}</tspan>'
    return text


def draw(transcript):
    """Returns the SVG of a transcript."""
    lines = [line.rstrip() for line in transcript.splitlines()]
    lines = [line for line in lines if not line.startswith("report: ")]
    while lines and not lines[-1]:
        lines.pop()
    lines = timed(lines)
    total_s = max(second for second, _ in lines) / SPEED + PAUSE_S
    width = COLUMNS * CHAR_PX + 2 * MARGIN_PX
    height = (len(lines) + 1) * LINE_PX + 2 * MARGIN_PX + TITLE_PX
    rules, texts = [], []
    y = MARGIN_PX + TITLE_PX + LINE_PX / 2
    texts.append(f'<text x="{MARGIN_PX}" y="{y:.0f}">$ kumi demo</text>')
    for number, (second, line) in enumerate(lines):
        y += LINE_PX
        if not line:
            continue
        # The last line is visible in the picture of a viewer that does not animate.
        percent = 100 * (second / SPEED + 0.8) / total_s
        rules.append(
            f"@keyframes l{number}{{0%,{percent:.2f}%{{opacity:0}}{percent + 0.01:.2f}%,100%{{opacity:1}}}}"
            f"#l{number}{{animation:l{number} {total_s:.1f}s infinite}}"
        )
        texts.append(
            f'<text id="l{number}" x="{MARGIN_PX}" y="{y:.0f}" xml:space="preserve">{coloured(line)}</text>'
        )
    dots = "".join(
        f'<circle cx="{MARGIN_PX + 18 * at:.0f}" cy="{TITLE_PX / 2 + 2:.0f}" r="5.5" fill="{colour}"/>'
        for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14" fill="{TEXT}">'
        f"<title>Recording of kumi demo</title><style>{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>{dots}{"".join(texts)}</svg>\n'
    )


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(draw(Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    main()
