"""Training as a service: specifications from requests, and jobs as the APIs show them. Torch-free.

    settings.py     settings of a job from JSON, checked as the trainer checks them, without its own files and hosts
    inputs.py       uploaded files as inputs of a job
    fine_tuning.py  OpenAI's fine-tuning methods and hyperparameters as settings
    results.py      result files of fine-tuning jobs
    judges.py       judges of graders, with the rights of a key
    evals/          OpenAI's Evals API
    shown.py        jobs, events, checkpoints and metrics as JSON

Routes are in `routes/training/`.
"""
