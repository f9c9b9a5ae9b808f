"""What every room may use: files, progress bars, GPU memory, precision, CUDA graphs."""
