#!/usr/bin/env python3
"""A TaskEpilog for Slurm: submits the transfer of a job's output without waiting, so that the node is free immediately.

ZMOVE_STAGE_OUT="/scratch/run7/ dtn.example.org:/archive/run7" sbatch ...

It runs as the job's user, with the environment of the task, after each task of each step. Each task has a separate
submission, and data that is already at the target is not sent again. The script does nothing if ZMOVE_STAGE_OUT is not
in that environment: if it was not exported (sbatch --export=NONE), or in an Epilog, which runs as root without it.

A requeued job keeps its number but has different output, so SLURM_RESTART_COUNT is part of the id. The runner handles
the transfer: it retries for seven days, and sends notifications with the hook and the webhook of notify.toml.
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
