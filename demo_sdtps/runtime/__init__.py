"""What every part stands on: errors, files, threads, devices, processes."""
