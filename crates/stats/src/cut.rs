//! Runs of which a rare slow one weighs no more than others.
//!
//! Boots have a tail: a retry or a flush makes one of ten 30 % slower, or three times as long. Such a run says that
//! there is a tail, and nothing of the level of what was run; in a mean of five it is all that is seen. So where
//! levels are asked for, no run is taken to be farther from the middle of its group than [`CUT`] standard
//! deviations of single runs, taken robustly over all groups (P. Huber, Annals of Mathematical Statistics 35, 1964;
//! W. Dixon, J. Tukey, Technometrics 10, 1968).

use crate::sample::{mad, median, MAD_TO_SD};

/// Standard deviations beyond which a run is cut.
pub(crate) const CUT: f64 = 3.5;
/// With fewer deviations their size is not known.
const FEWEST_DEVIATIONS: usize = 12;

/// Robust standard deviation of single runs about the middle of their group; none where too few are there to tell,
/// or they do not differ.
pub(crate) fn sd_of_runs(groups: &[Vec<f64>]) -> Option<f64> {
    let sizes: Vec<f64> = groups.iter().flat_map(|own| sizes(own)).collect();
    let sd = median(&sizes) * MAD_TO_SD;
    (sizes.len() >= FEWEST_DEVIATIONS && sd > 0.0 && sd.is_finite()).then_some(sd)
}

/// How far the runs are from their middle; the one that is the middle tells nothing.
fn sizes(own: &[f64]) -> Vec<f64> {
    let middle = median(own);
    let mut sizes: Vec<f64> = own.iter().map(|y| (y - middle).abs()).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.split_off(own.len() % 2)
}

/// The runs of each group, the far ones cut; as they are where nothing tells how far that is. A group most of whose
/// runs are far apart is noisier than the others, and is cut by its own.
pub fn cut(groups: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let Some(sd) = sd_of_runs(groups) else { return groups.to_vec() };
    let of_group = |own: &Vec<f64>| {
        let (middle, own_sd) = (median(own), mad(own) * MAD_TO_SD);
        let far = CUT * sd.max(own_sd);
        own.iter().map(|y| y.clamp(middle - far, middle + far)).collect()
    };
    groups.iter().map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rare_slow_run_is_cut_and_levels_stay() {
        let group = |level: f64| [-1.0, -0.6, 0.0, 0.6, 1.0].map(|y| level + y).to_vec();
        let mut groups = vec![group(0.0), group(50.0), group(100.0)];
        assert_eq!(cut(&groups), groups);
        groups[1][4] = 900.0;
        let found = cut(&groups);
        assert_eq!((&found[0], &found[2]), (&groups[0], &groups[2]));
        assert!((51.0..56.0).contains(&found[1][4]), "{found:?}");
        // Counts that do not differ, and too few runs, are left.
        let counts = vec![vec![3.0; 5], vec![3.0; 5], vec![3.0, 3.0, 3.0, 3.0, 9.0]];
        assert_eq!(cut(&counts), counts);
        assert_eq!(cut(&groups[1..2]), groups[1..2]);
        assert!(cut(&[]).is_empty());
    }
}
