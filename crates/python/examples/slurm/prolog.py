#!/usr/bin/env python3
"""A TaskProlog for Slurm, or the first line of a batch script: transfers a job's input before the job begins.

ZMOVE_STAGE_IN="dtn.example.org:/archive/run7/ /scratch/run7" sbatch ...

It does nothing if ZMOVE_STAGE_IN is not set. All tasks of a run wait for the same transfer, because they use the same
submission id. A requeued job keeps its number but may change its node, so SLURM_RESTART_COUNT is part of the id. At the
end, the script checks that the transfer belongs to this run, since a reinstalled cluster counts jobs from 1 again.
"""

import os
import sys

from zmove import Client, ZmoveError

#: Maximum difference between two hosts' clocks, in seconds.
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
        # Slurm drains a node if a Prolog fails. A failed TaskProlog only ends the task.
        sys.exit(f"stage in: {error}")
    # Newer releases of Slurm set the start time of the run, possibly by the clock of another host.
    begun = int(os.environ.get("SLURM_JOB_START_TIME", "0"))
    if brought.as_dict()["ended"] < begun - CLOCKS_DIFFER_MAX:
        sys.exit(f"stage in: job {brought.id} ({id}) was done before this run: 'zmove job {brought.id} rerun'")


if __name__ == "__main__":
    main()
