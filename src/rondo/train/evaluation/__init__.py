"""Evaluation: held-out loss, multiple-choice accuracy and generated answers, within a job or of a finished model."""
