"""Runs one test of rdma-core's suite, by its name. Without a name, prints the names of all tests.

`cargo xtask pyverbs` runs this program in a folder that contains the suite as `tests`, and judges
the results. It is Python because the suite consists of Python's unittest classes.
"""
import sys
import unittest

sys.path[:0] = ["tests", "."]
name, sys.argv[1:] = sys.argv[1:], []
from args_parser import parser  # noqa: E402

parser.parse_args()


def names(suite):
    for test in suite:
        yield from names(test) if isinstance(test, unittest.TestSuite) else [test.id()]


if not name:
    print("\n".join(names(unittest.defaultTestLoader.discover("tests", top_level_dir="."))))
    sys.exit()
test = unittest.defaultTestLoader.loadTestsFromName(name[0])
result = unittest.TextTestRunner(verbosity=2).run(test)
for _, reason in result.skipped:
    print("SKIPPED", " ".join(reason.split()))
sys.exit(not result.wasSuccessful())
