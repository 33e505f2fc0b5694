"""Terminal output: progress bars, live blocks, tables and sparklines. Pure formatting; no verb is imported here."""
