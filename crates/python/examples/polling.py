#!/usr/bin/env python3
"""Submits a transfer and polls it in the words of FTS, as Rucio's conveyor does: polling.py SOURCE TARGET"""

import sys
import time
import uuid

from zmove import Client, Job

#: States of FTS, by those of zmove.
FTS = {
    "waiting": "SUBMITTED",
    "queued": "READY",
    "running": "ACTIVE",
    "paused": "STAGING",
    "done": "FINISHED",
    "failed": "FAILED",
    "cancelled": "CANCELED",
    "expired": "FAILED",
}


def bulk(client: Client, transfers: list, request: str) -> list:
    """Submits transfers once, however often it is called for the same request: each try has a request of its own."""
    return [
        client.submit(source, target, submission_id=f"{request}-{number}", label=request)
        for number, (source, target) in enumerate(transfers)
    ]


def poll(client: Client, ids: list) -> dict:
    """The present state of each, in the words of FTS."""
    return {id: FTS[client.job(id).state] for id in ids}


def main() -> None:
    source, target = sys.argv[1:]
    client = Client()
    # Made once for a try, and kept by who may have to repeat the call. A transfer that has failed is a new request.
    jobs: list[Job] = bulk(client, [(source, target)], str(uuid.uuid4()))
    while True:
        states = poll(client, [job.id for job in jobs])
        print(states)
        if not set(states.values()) & {"SUBMITTED", "READY", "ACTIVE", "STAGING"}:
            sys.exit("FAILED" in states.values())
        time.sleep(0.5)


if __name__ == "__main__":
    main()
