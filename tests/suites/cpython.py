"""Runs a module of CPython's tests and appends each test's outcome to RESULTS; ONLY names the tests to run."""

import importlib.util
import os
import sys
import unittest


class Outcomes(unittest.TestResult):
    """Writes a line as soon as a test has ended: the program may die in the next."""

    def __init__(self):
        super().__init__()
        self.out = open(os.environ["RESULTS"], "a", buffering=1)
        self.bad = False

    def startTest(self, test):
        super().startTest(test)
        self.bad = self.left_out = False

    def addError(self, test, error):
        super().addError(test, error)
        self.bad = True
        print(self.errors[-1][1], file=sys.stderr)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.bad = True
        print(self.failures[-1][1], file=sys.stderr)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.bad = True
            print(subtest.id(), *error, file=sys.stderr)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.left_out = True

    def stopTest(self, test):
        super().stopTest(test)
        if self.bad or not self.left_out:
            print("fail" if self.bad else "pass", test.id(), file=self.out)


def each(suite):
    for test in suite:
        yield from each(test) if isinstance(test, unittest.TestSuite) else [test]


def main(name):
    if not importlib.util.find_spec(name):
        return
    only = os.environ.get("ONLY")
    wanted = set(open(only).read().splitlines()) if only else None
    if wanted is not None and not any(test.startswith(name + ".") for test in wanted):
        return
    from test import support

    support.use_resources = ["largefile", "subprocess"]
    tests = list(each(unittest.defaultTestLoader.loadTestsFromName(name)))
    unittest.TestSuite(t for t in tests if wanted is None or t.id() in wanted).run(Outcomes())


main(sys.argv[1])
