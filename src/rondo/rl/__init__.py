"""Reinforcement learning: tasks, environments, rollout collection, scoring, policy updates, and the loop.

    prompts -> rollout -> score -> advantage -> pack -> train -> push weights -> rollout ...

Inputs are a model, a task (prompts and a grader, or an environment) and a config. Outputs are an exported model,
metrics, stored rollouts and alarms in the job's folder. One policy loss covers GRPO, Dr. GRPO, RLOO, PPO, GSPO and
their relatives; `algorithms.py` is the table of their settings.

    loop.py        one step of the loop, for every algorithm and engine
    jobs.py        an RL job from its config: load, run or resume, export
    algorithms.py  named algorithms as settings of the one loss
    tasks/         built-in tasks, tasks from files, user-defined tasks
    environments/  multi-turn episodes, tool calling, agents behind an OpenAI endpoint
    rollout/       synchronous and asynchronous collection, prompts, scoring
    remote/        remote engines, weight push, Ray
    update/        advantages, packing, critic, reference and teacher models, preference pairs
    record/        stored rollouts, queries, metrics, events, alarms, plots
    evaluation.py  pass@1 and pass@k on held-out prompts
    config.py      settings; settings of a folder are in its own `config.py`

Over several ranks every rank runs the loop, and `update/division.py` divides model passes among them; with
`rollout/rank_collectors.py` every rank receives all samples of a step.

Read `loop.py` first, then `rollout/types.py`.
"""
