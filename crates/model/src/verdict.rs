//! What comparisons conclude.

vmeter_base::words! {
    /// What is said of b against a.
    pub enum Verdict {
        /// b takes less.
        Faster = "faster",
        /// b takes more.
        Slower = "slower",
        /// The interval lies within the margin of what counts as equal.
        Equal = "equal within",
        /// Either there is none, or so few runs can't show it.
        NoDifference = "no difference found",
        /// So few runs could not show any difference, however large; or the typical run and the mean disagree.
        Undecidable = "undecidable",
    }
}

vmeter_base::words! {
    /// What `--overhead` says of the cost of watching and the bound that is promised.
    pub enum OverheadVerdict {
        /// It is at most the bound.
        Within = "within",
        /// It is more.
        Exceeds = "exceeds",
        /// So few pairs could not tell.
        Undecided = "undecided",
    }
}

vmeter_base::words! {
    /// What `vmeter runs trend` says of a level over the one before it.
    pub enum TrendVerdict {
        /// The machine takes less.
        Faster = "faster",
        /// It takes more.
        Slower = "slower",
        /// The machine, or a host whose hours resemble each other: these sessions can't tell.
        Undecided = "undecided",
    }
}

vmeter_base::words! {
    /// What `vmeter diff` says of b against a.
    pub enum DiffVerdict {
        /// b's total is less.
        Faster = "faster",
        /// b's total is more.
        Slower = "slower",
        /// The totals do not differ, but something in them does.
        Different = "different",
        /// Nothing differs by more than noise.
        NoDifference = "no difference found",
        /// One run a side: their noise is not known.
        NotKnown = "not known",
        /// Nothing says how the guests ended, only that their VMMs exited.
        EndsNotKnown = "ends not known",
    }
}

vmeter_base::words! {
    /// What `vmeter range` says of a range of commits.
    pub enum RangeVerdict {
        /// One or more commits changed the time.
        Changed = "changed",
        /// None did.
        NoChange = "no change",
        /// More runs would tell.
        Undecided = "undecided",
        /// Fewer than two commits can be measured.
        NotMeasurable = "not measurable",
    }
}

vmeter_base::words! {
    /// What a change of level in a range looks like.
    #[derive(Default)]
    pub enum ChangeShape {
        /// It came with one commit.
        #[default]
        Step = "step",
        /// Every commit of a stretch adds a little.
        Creep = "creep",
        /// These runs fit either.
        Undecided = "undecided",
        /// Slow boots became more frequent with one commit, or fewer.
        Tail = "tail",
    }
}

vmeter_base::words! {
    /// How far a commit of a range got.
    pub enum CommitState {
        /// It has samples.
        Measured = "measured",
        /// It has none so far.
        NotMeasured = "not measured",
        /// It does not build.
        BuildFailed = "build failed",
        /// It builds, and its runs fail.
        DoesNotRun = "does not run",
        /// It runs, and nothing says how its guest ends: a crash may be what is timed.
        NotCompared = "not compared",
    }
}
