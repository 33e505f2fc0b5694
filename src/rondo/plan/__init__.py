"""Planner: layouts, memory, traffic and predicted times of training and serving, by closed formulas.

Inputs are a model (by name, Hugging Face config or sizes), a cluster (devices, memory, links) and a batch. Outputs
are a layout with a memory policy, the memory of each rank, bytes sent by each kind of parallelism, and the predicted
step time, with reasons in plain words. Nothing is measured and no device is needed; torch is not imported. For one
device, `finetune.py` chooses between full fine-tuning, LoRA and QLoRA.

    sizes/       model sizes, parameters and FLOPs
    cost/        cluster, layout, memory, traffic and time of one candidate
    choice/      search over all layouts, classic rules, comparison and reasons
    finetune.py  memory and choice of full fine-tuning, LoRA and QLoRA on one device
    machine.py   the device of this machine: memory, and number types
    serving.py   number of replicas and GPUs for serving, throughput and latency
    report.py    tables and JSON

Read `sizes/model.py`, then `cost/memory.py` and `choice/search.py`.
"""
