//! Trace formats: ftrace text, trace.dat, perf, QEMU logs, xentrace, strace.
