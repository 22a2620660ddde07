#!/usr/bin/env python3
"""An epilog for Slurm: has a job's output sent, and does not wait, so that the node is free at once.

ZMOVE_STAGE_OUT="/scratch/run7/ dtn.example.org:/archive/run7" sbatch ...

What the runner does is its own: it tries for seven days, and tells by the channels of tell.toml.
"""

import os
import sys

from zmove import Client, ZmoveError


def main() -> None:
    order = os.environ.get("ZMOVE_STAGE_OUT", "").split()
    if not order:
        return
    *sources, target = order
    id = f"slurm-{os.environ['SLURM_JOB_ID']}-out"
    try:
        job = Client().submit(sources, target, submission_id=id, label=id, deadline="7d")
    except ZmoveError as error:
        sys.exit(f"stage out: {error}")
    print(f"job {job.id} sends {' '.join(sources)}")


if __name__ == "__main__":
    main()
