"""The demo: a real cluster on this machine, a training job that breaks, and relight bringing it back."""
