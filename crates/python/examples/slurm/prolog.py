#!/usr/bin/env python3
"""A prolog for Slurm (TaskProlog, or the first line of a batch script): brings a job's input before it begins.

ZMOVE_STAGE_IN="dtn.example.org:/archive/run7/ /scratch/run7" sbatch ...

Slurm runs a prolog again where a node was lost: by the submission's id the transfer is the same.
"""

import os
import sys

from zmove import Client, ZmoveError


def main() -> None:
    order = os.environ.get("ZMOVE_STAGE_IN", "").split()
    if not order:
        return
    *sources, target = order
    id = f"slurm-{os.environ['SLURM_JOB_ID']}-in"
    try:
        job = Client().submit(sources, target, submission_id=id, label=id, deadline="1h")
        job.wait(timeout=3600).raise_for_status()
    except ZmoveError as error:
        # Slurm drains a node whose prolog fails: a task prolog ends the job alone.
        sys.exit(f"stage in: {error}")


if __name__ == "__main__":
    main()
