//! The two ends of a migration.

vmeter_base::words! {
    /// Which of the two.
    pub enum Side {
        /// The VMM that the guest leaves.
        Source = "source",
        /// The VMM that the guest moves to.
        Destination = "destination",
    }
}
