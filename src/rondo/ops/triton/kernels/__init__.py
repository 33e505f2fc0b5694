"""What Triton compiles. Imported only where Triton is at hand."""
