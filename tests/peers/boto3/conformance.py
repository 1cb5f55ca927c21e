"""Runs the cases against one server.

    conformance.py NAME ENDPOINT

NAME is `postern`, `moto` or `cognito-local`; administrator credentials are in AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY. Prints one JSON line per case: {"case", "outcome", "detail"}, where the outcome is `ok`, `failed`,
or for a gap in gaps.py `gap` (`closed` if the server no longer has it). Exits with 1 if a case failed.
"""

import json
import sys
import os
import time

from cases import CASES
from gaps import GAPS
from target import Target


def run(case, endpoint):
    try:
        case(Target(endpoint, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]))
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def outcome(mistake, gap):
    if mistake is None:
        return "ok" if gap is None else "closed"
    return "failed" if gap is None else "gap"


def main():
    name, endpoint = sys.argv[1:]
    known, failed = GAPS[name], 0
    began = time.monotonic()
    for case in CASES:
        gap = known.get(case.__name__)
        mistake = run(case, endpoint)
        result = outcome(mistake, gap)
        failed += result == "failed"
        line = {"case": case.__name__, "outcome": result, "detail": gap if result == "gap" else mistake}
        print(json.dumps(line), flush=True)
    summary = {"target": name, "cases": len(CASES), "failed": failed, "gaps": len(known)}
    print(json.dumps({**summary, "elapsed_s": round(time.monotonic() - began, 1)}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
