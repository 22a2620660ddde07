"""A step of Snakemake: sends its input, and writes what has become of it into its output.

It has no submission's id: Snakemake runs a step again since something has changed, and that is to be sent.
"""

import json

from zmove import Client

step = globals()["snakemake"]
job = Client().submit(list(step.input), step.params["target"])
job.wait().raise_for_status()
with open(step.output[0], "w") as output:
    json.dump(job.as_dict(), output)
