//! `--blame`, `--critical-chain` and `--tree`.

use crate::reports::{on_screen, results};
use insta::assert_snapshot;
use vmeter_lab::boot::report::BootReport;
use vmeter_lab::boot::report::BootView;
use vmeter_lab::boot::report::TreeView;
use vmeter_render::Screen;

fn shown(view: BootView, runs: u32) -> String {
    let result = results::boot::boot(runs, true);
    on_screen(Screen::PLAIN, &BootReport { result: &result, view })
}

#[test]
fn blame() {
    assert_snapshot!(shown(BootView { blame: true, ..BootView::default() }, 10));
}

#[test]
fn critical_chain() {
    assert_snapshot!(shown(BootView { critical_chain: true, ..BootView::default() }, 3));
}

#[test]
fn tree_of_a_run() {
    let tree = Some(TreeView { run: Some(1), min_duration: 20_000_000 });
    assert_snapshot!(shown(BootView { tree, ..BootView::default() }, 3));
}

#[test]
fn tree_of_means() {
    let tree = Some(TreeView { run: None, min_duration: 50_000_000 });
    assert_snapshot!(shown(BootView { tree, ..BootView::default() }, 3));
}

#[test]
fn tree_of_a_run_that_is_not_there_says_so() {
    let tree = Some(TreeView { run: Some(7), min_duration: 0 });
    let shown = shown(BootView { tree, ..BootView::default() }, 3);
    assert!(shown.contains("There is no run 7"), "{shown}");
}
