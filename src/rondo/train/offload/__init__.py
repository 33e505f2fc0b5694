"""Offloading: optimizer state and layer weights on disk or in host memory, so that larger models fit.

`disk_tensors.py` maps tensors from files; `optimizer_state.py` and `streamed_layers.py` use it during a step,
`offloaded_state.py` frees the device between steps.
"""
