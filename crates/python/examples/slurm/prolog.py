#!/usr/bin/env python3
"""A TaskProlog for Slurm, or the first line of a batch script: brings a job's input before it begins.

ZMOVE_STAGE_IN="dtn.example.org:/archive/run7/ /scratch/run7" sbatch ...

It does nothing where ZMOVE_STAGE_IN is not set. All tasks of a run wait for the same transfer, by its submission's id.
A job that was requeued keeps its number but perhaps not its node, so SLURM_RESTART_COUNT is part of the id; and at the
end the transfer has to be one of this run: a cluster that was set up anew counts from 1 again.
"""

import os
import sys

from zmove import Client, ZmoveError

#: Seconds.
CLOCKS_DIFFER_MAX = 300


def main() -> None:
    order = os.environ.get("ZMOVE_STAGE_IN", "").split()
    if not order:
        return
    *sources, target = order
    job, run = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
    id = f"slurm-{job}-run{run}-in"
    try:
        brought = Client().submit(sources, target, submission_id=id, label=id, deadline="1h")
        brought.wait(timeout=3600).raise_for_status()
    except ZmoveError as error:
        # Slurm drains a node whose Prolog fails: a TaskProlog ends the task alone.
        sys.exit(f"stage in: {error}")
    # Slurm says when the run has begun in newer releases; its clock may be another host's.
    begun = int(os.environ.get("SLURM_JOB_START_TIME", "0"))
    if brought.as_dict()["ended"] < begun - CLOCKS_DIFFER_MAX:
        sys.exit(f"stage in: job {brought.id} ({id}) was done before this run: 'zmove job {brought.id} rerun'")


if __name__ == "__main__":
    main()
