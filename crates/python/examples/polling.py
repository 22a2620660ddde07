#!/usr/bin/env python3
"""Submits a transfer and polls it with the states of FTS, like Rucio's conveyor: polling.py SOURCE TARGET"""

import sys
import time
import uuid

from zmove import Client, Job

#: The FTS state for each state of zmove.
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
    """Submits the transfers of a request once, even if it is called repeatedly with the same request id."""
    return [
        client.submit(source, target, submission_id=f"{request}-{number}", label=request)
        for number, (source, target) in enumerate(transfers)
    ]


def poll(client: Client, ids: list) -> dict:
    """Returns the current FTS state of each job."""
    return {id: FTS[client.job(id).state] for id in ids}


def main() -> None:
    source, target = sys.argv[1:]
    client = Client()
    # Create one id per request and keep it to repeat the call. Retrying a failed transfer is a new request.
    jobs: list[Job] = bulk(client, [(source, target)], str(uuid.uuid4()))
    while True:
        states = poll(client, [job.id for job in jobs])
        print(states)
        if not set(states.values()) & {"SUBMITTED", "READY", "ACTIVE", "STAGING"}:
            sys.exit("FAILED" in states.values())
        time.sleep(0.5)


if __name__ == "__main__":
    main()
