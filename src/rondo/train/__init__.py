"""Training: the learner, the loop, losses, optimizers, checkpoints, recipes and evaluation.

Inputs are a model, data (records or prepared shards) and a config. Outputs are metrics, checkpoints and an exported
model in the job's folder. A job can be killed at any step and resumes with the same result. The learner is
independent of the algorithm: pretraining, fine-tuning, preference and reward training and RL differ in their loss.

    loop.py       steps, metrics, checkpoints, stopping
    jobs.py       a training job from its config: load, train or resume, export
    learner/      forward and backward passes, gradient accumulation, optimizer step, dry run
    recipes/      pretraining, SFT, preference, reward; their data and adapters
    losses/       cross-entropy, policy, value and preference losses
    optim/        AdamW and Muon, schedules, weight averaging, loss scaling, expert balance
    checkpoints/  distributed checkpoints, resumable saving, export to Hugging Face
    offload/      optimizer state, gradients and weights on disk or in host memory
    evaluation/   held-out loss, multiple choice, generated answers
    metrics/      throughput, MFU, memory, stragglers, faults, TensorBoard, W&B, Prometheus
    megatron/     Megatron-Core as a second learner
    config.py     settings, free of torch

Read `loop.py`, then `learner/learner.py`.
"""
