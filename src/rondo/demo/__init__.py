"""The demo: from no model at all to a chat model tuned with reinforcement learning, in minutes on two CPU cores.

`rondo demo` and `rondo up` use it. The demo pretrains a model of 1.7 M parameters on generated text, fine-tunes it on
solved problems, and tunes it with RL on a built-in task. Nothing is downloaded.

Input is the name of a task and a seed; output is a model folder under `RONDO_HOME/models`, in Hugging Face's layout,
which the server loads like any other model.

    pipeline.py  the three phases: pretraining, fine-tuning, reinforcement learning
    recipe.py    sizes of the model and settings of each phase, by task
    corpus.py    generated stories and sums for pretraining, solved problems for fine-tuning

The package uses the learner and the RL loop through their public functions alone, so it is also an example of how to
call them from Python. Read `pipeline.py` first.
"""
