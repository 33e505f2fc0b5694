"""What is said of each step of a training job: how it is measured, and where it goes."""
