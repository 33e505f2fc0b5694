"""Choice of a layout: exhaustive search with the cost model, the classic rules, and the reasons for the result."""
