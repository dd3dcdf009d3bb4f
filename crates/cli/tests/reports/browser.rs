//! Every report as a page in a real browser.

use crate::browser_driver as chromium;

use crate::reports::{results, text};

#[test]
fn every_page_opens_without_a_word_on_the_console() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |name: &str, page: &str| {
        let path = folder.path().join(format!("{name}.html"));
        std::fs::write(&path, page).expect("scratch space");
        chromium::open(&folder.path().join("profile"), &path)
    };
    let forbidden = "<!doctype html><meta http-equiv=\"Content-Security-Policy\" \
                     content=\"default-src 'none'\"><img src=\"x.png\">";
    let Some(opened) = open("forbidden", forbidden) else { return };
    assert!(!opened.console.is_empty(), "this browser's console cannot be read");
    results::each(&mut |name, report| {
        let page = text("html", report);
        let Some(opened) = open(name, &page) else { return };
        assert!(opened.console.is_empty(), "{name}: {:?}", opened.console);
        assert!(opened.dom.contains("<footer>vmeter/1, "), "{name} is not whole");
        // A browser closes what a page left open, and drops what nothing opened.
        for tag in ["<table", "<svg", "<details", "<li", "<dt"] {
            let count = |html: &str| html.matches(tag).count();
            assert_eq!(count(&opened.dom), count(&page), "{name}: {tag}");
        }
    });
}
