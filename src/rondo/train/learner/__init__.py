"""The learner: gradients of any loss over packed rows, and the optimizer step.

`passes.py` runs forward and backward passes on one device, `pipelined.py` over pipeline stages, `shared_prefix.py` over
rows in which several answers share a prompt. `factory.py` chooses between the native learner and Megatron-Core.
"""
