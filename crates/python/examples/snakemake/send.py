"""A step of Snakemake: sends its input, and writes the result into its output.

It uses no submission id: Snakemake repeats a step because its input has changed, and the changes must be sent.
"""

import json

from zmove import Client

step = globals()["snakemake"]
job = Client().submit(list(step.input), step.params["target"])
job.wait().raise_for_status()
with open(step.output[0], "w") as output:
    json.dump(job.as_dict(), output)
