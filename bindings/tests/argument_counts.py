# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares the argument counts of a list of calls with the prototypes of an mpi.h.

    argument_counts.py CALLS_H PREPROCESSED_MPI_H

A count that is too small drops arguments on the stack, and a compiler does not detect it. Functions
that are not in the header are skipped. Prints the differences, and exits with 1 if there are any.
"""

import re
import sys

calls = re.findall(r"^ +X\((\w+), (\w+), (\d+), \w+\)", open(sys.argv[1]).read(), re.MULTILINE)
header = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", open(sys.argv[2]).read())
compared = wrong = 0
for name, fortran, count in calls:
    if fortran != name.lower():
        print(f"{name}: the Fortran name is {name.lower()}, not {fortran}")
        wrong += 1
    for symbol in (f"MPI_{name}", f"MPI_{name}_c"):
        prototype = re.search(rf"\bint\s+{symbol}\s*\(([^;]*?)\)\s*;", header)
        if prototype is None:
            continue
        compared += 1
        declared = prototype.group(1).count(",") + 1
        if declared != int(count):
            print(f"{symbol} has {declared} arguments, not {count}")
            wrong += 1
print(f"{compared} compared")
sys.exit(wrong != 0 or compared < 60)
