"""Routes of training jobs.

details.py      settings with their descriptions, and the events and checkpoints of a job
jobs.py         jobs of each kind, with the settings of `rondo train` and `rondo rl`
forecast.py     memory, tokens and duration of a job before it is submitted
rollouts.py     rollouts and alarms of an RL job
nodes.py        machines on which jobs run
fine_tuning.py  OpenAI's fine-tuning jobs
models.py       deletion of fine-tuned models
permissions.py  permissions of checkpoints
graders.py      OpenAI's grader routes
evals.py        OpenAI's evals, their runs and output items
"""
