//! Every output of synthetic results: what they look like, what they promise,
//! and what hostile strings cannot do to them.

mod browser;
mod export;
mod golden;
mod hostile;
mod json;
mod perfetto;
mod results;
mod views;

use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output, Report, Screen, OUTPUTS};

/// A registered output.
fn by_name(name: &str) -> &'static dyn Output {
    *OUTPUTS.iter().find(|output| output.name() == name).expect("a registered output")
}

/// What an output writes, by name.
fn rendered(output: &str, report: &dyn Report) -> Vec<u8> {
    let output = by_name(output);
    let mut bytes = Vec::new();
    output.write(report, &mut bytes).expect("a Vec takes everything");
    bytes
}

/// The same as text.
fn text(output: &str, report: &dyn Report) -> String {
    String::from_utf8(rendered(output, report)).expect("UTF-8")
}

/// What a screen shows.
fn on_screen(screen: Screen, report: &dyn Report) -> String {
    let mut bytes = Vec::new();
    Terminal { screen }.write(report, &mut bytes).expect("a Vec takes everything");
    String::from_utf8(bytes).expect("UTF-8")
}
