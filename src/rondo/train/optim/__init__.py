"""Optimizers and what surrounds them: AdamW, Muon, learning-rate schedules, weight averaging, loss scaling, expert
balance.
"""
