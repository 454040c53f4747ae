# SPDX-License-Identifier: MIT OR Apache-2.0
"""argument_counts.py CALLS_H PREPROCESSED_MPI_H: compares each line of the list with its prototype.

A count that is too small would drop arguments on the stack, and no compiler can see it. Functions
that the header does not have are skipped. Prints what differs; exits 1 if anything does.
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
