//! The tree of time as text.

use super::View;
use crate::evidence::tree::Frame;

/// The tree below a root as text: for those who build detectors.
pub fn outline(view: &View<'_>, root: Frame) -> String {
    fn line(view: &View<'_>, at: u32, depth: usize, whole: u64, out: &mut String) {
        let Some(node) = view.tree().node(at) else { return };
        let share = node.ticks as f64 / whole.max(1) as f64;
        if share < 0.02 || depth > 16 {
            return;
        }
        let name = view.frame(node.frame);
        let indent = "  ".repeat(depth);
        out.push_str(&format!("{indent}{name} {:.1} % ×{}\n", share * 100.0, node.count));
        for (at, _) in view.tree().within(at) {
            line(view, at, depth + 1, whole, out);
        }
    }
    let mut out = String::new();
    if let Some(at) = view.tree().root_of(root) {
        let whole = view.tree().node(at).map_or(0, |node| node.ticks);
        line(view, at, 0, whole, &mut out);
    }
    out
}
