"""Answers of a given form: grammars are compiled beside the steps, and say for each token what may come next.

`llguidance` does both. It is imported when the first request asks for such a form.
"""
