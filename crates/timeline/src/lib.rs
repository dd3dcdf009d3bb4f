//! Events to a tree of spans that accounts for the whole of a boot.
