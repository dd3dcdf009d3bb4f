//! Experiments: boot, bench, and the folders that runs are saved in.
