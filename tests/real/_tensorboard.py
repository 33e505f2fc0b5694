"""Run by the trackers' Python: the scalars that TensorBoard reads of a folder, as JSON."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}))
