//! The two ends of a migration.

vmeter_base::words! {
    /// Which of the two.
    pub enum Side {
        /// Where the guest is.
        Source = "source",
        /// Where it goes.
        Destination = "destination",
    }
}
