"""Parallelism for a decoder that contains no distributed code: DP, FSDP, TP, SP, PP, EP and CP.

Inputs are a model, a layout (the degree of each kind of parallelism) and this process's rank. Output is the part of the
model that this rank computes, with its parameters as DTensors and the collectives inserted around its layers.
`apply.py` applies the transformations in a fixed order.

    config.py       settings of the layout, free of torch
    apply.py        a model without distributed code, turned into one rank's part
    layout/         arithmetic: degrees, pipeline cuts, tensor splits
    ranks/          rank discovery (torchrun, MPI, Slurm), device meshes, supervision of ranks
    tensor/         tensor and sequence parallelism, slices of a checkpoint
    pipeline/       pipeline stages and schedules
    context/        context parallelism: ring attention and Ulysses
    data.py         data parallelism and FSDP2
    experts.py      expert parallelism
    collectives.py  collectives on activations, with their gradients
    recompute.py    activation checkpointing
    precision.py    mixed precision

Read `layout/degrees.py` and `apply.py` first.
"""
