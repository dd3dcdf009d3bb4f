//! How one of several alike compares with the others.

/// Fewer peers than this say nothing.
pub const MIN_PEERS: usize = 3;

/// Values of several that are alike: ports of one machine, calls of one program.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    sorted: Vec<f64>,
}

impl Peers {
    /// Of these values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Peers {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Peers { sorted }
    }

    /// Number of the others.
    pub fn others(&self) -> usize {
        self.sorted.len().saturating_sub(1)
    }

    /// Median of the others than `own`, which is one of the values; none if they are too few.
    pub fn typical(&self, own: f64) -> Option<f64> {
        let others = self.others();
        if others < MIN_PEERS {
            return None;
        }
        // Medians of "all but one" come from one sorted list: only the middle moves.
        let at = self.sorted.partition_point(|&value| value < own);
        let peer = |i: usize| self.sorted.get(if i >= at { i + 1 } else { i });
        Some((peer((others - 1) / 2)? + peer(others / 2)?) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_compared_with_the_others_only() {
        let peers = Peers::of([9.0, 1.0, 2.0, 3.0]);
        assert_eq!(peers.typical(9.0), Some(2.0));
        assert_eq!(peers.typical(1.0), Some(3.0));
        assert_eq!(Peers::of([1.0, 1.0, 1.0, 1.0, 5.0]).typical(1.0), Some(1.0));
        assert_eq!(Peers::of([1.0, 2.0, 3.0]).typical(2.0), None);
        assert_eq!(Peers::of([]).typical(2.0), None);
    }
}
