//! The HTML report in a real browser: what it shows, and that nothing which a guest
//! said is run by it.

use crate::common;

use crate::browser_driver as browser;

use common::Lab;

/// A name that a guest chose, and what it would do in a page that forgot to escape it.
const HOSTILE: &str =
    "<img/src=x/onerror=document.title='owned'><script>document.title='owned'</script>";

/// A guest whose steps and console lines are hostile.
fn hostile_guest(lab: &Lab) -> String {
    let text = format!(
        "vmeter-mock 1\n1ms vmm-exec\n2ms vmm-entry\n2ms vmm-main\n5ms state running\n\
         0.1ms reach reset-vector\n9ms firmware {HOSTILE}\n16ms reach start_kernel\n\
         24ms reach rest_init\n2ms reach kernel_init_freeable\n0 level early\n\
         300ms initcall slow_init\n9ms reach run_init_process\n1ms exec 1 /init\n\
         20ms step {HOSTILE}\n1ms console {HOSTILE}\n0 ready\n1ms shutdown\n2ms poweroff\n\
         1ms vmm-exiting\n1ms exit 0\n"
    );
    let path = lab.path("hostile.mock");
    std::fs::write(&path, text).expect("scratch space");
    path.display().to_string()
}

#[test]
fn a_report_opens_in_a_browser_and_runs_nothing() {
    let lab = Lab::new();
    let (machine, saved) = (hostile_guest(&lab), lab.path("saved").display().to_string());
    let boot = ["boot", "--vmm", "mock", "--machine", &machine, "--runs", "3", "--save", &saved];
    let ran = lab.run(&boot);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let page = lab.path("report.html");
    let ran = lab.run(&["report", &saved, "-o", &page.display().to_string()]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);

    let source = std::fs::read_to_string(&page).expect("the report");
    for remote in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!source.contains(remote), "the page asks the network: {remote}");
    }
    let Some(browser::Opened { dom, console }) = browser::open(&lab.path("profile"), &page) else {
        return;
    };
    assert!(console.is_empty(), "{console:?}");
    assert!(dom.contains("<title>vmeter boot"), "{}", &dom[..dom.len().min(400)]);
    assert!(!dom.contains("owned</title>") && !dom.contains("<img"), "the guest's text ran");
    assert!(dom.contains("&lt;script&gt;document.title"), "the guest's text is shown, as text");
    for shown in ["initcall slow_init", "unattributed", "TOTAL", "<svg"] {
        assert!(dom.contains(shown), "{shown} is missing");
    }
}
