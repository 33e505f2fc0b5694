"""Optimizers and related parts: AdamW, Muon, learning-rate schedules, weight averaging, loss scaling, expert
balance.
"""
