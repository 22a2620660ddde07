#!/usr/bin/env python3
"""A TaskEpilog for Slurm: has a job's output sent, and does not wait, so that the node is free at once.

ZMOVE_STAGE_OUT="/scratch/run7/ dtn.example.org:/archive/run7" sbatch ...

It runs as the job's user, with the environment of the task, after each task of each step: each has a submission of its
own, and what is at the target already is not sent again. It does nothing where ZMOVE_STAGE_OUT is not in that
environment: where it was not exported (sbatch --export=NONE), and in an Epilog, which is root's and has nothing of it.

A job that was requeued keeps its number, and its output is another: SLURM_RESTART_COUNT is part of the id. What the
runner does is its own: it tries for seven days, and notifies by the hook and the webhook of notify.toml.
"""

import os
import sys

from zmove import Client, ZmoveError


def main() -> None:
    order = os.environ.get("ZMOVE_STAGE_OUT", "").split()
    if not order:
        return
    *sources, target = order
    job, run = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
    step, task = os.environ.get("SLURM_STEP_ID", "0"), os.environ.get("SLURM_PROCID", "0")
    id = f"slurm-{job}-run{run}-step{step}-task{task}-out"
    try:
        sent = Client().submit(sources, target, submission_id=id, label=f"slurm-{job}-out", deadline="7d")
    except ZmoveError as error:
        sys.exit(f"stage out: {error}")
    print(f"job {sent.id} sends {' '.join(sources)}")


if __name__ == "__main__":
    main()
