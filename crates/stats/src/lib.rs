//! Estimates, comparisons, scaling fits and change points: pure functions over samples.
