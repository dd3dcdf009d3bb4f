//! Where the time of threads and requests went, as a tree of names: `outline [--without-CLASS] [NAME]
//! FILE…` prints
//! the trees whose text has that name.

#[path = "../tests/corpus/mod.rs"]
mod corpus;

use corpus::Class;
use vmeter_explain::{outline, Options};

fn main() {
    let (mut files, mut name) = (Vec::new(), String::new());
    let mut options = Options::default();
    for argument in std::env::args().skip(1) {
        let class =
            Class::ALL.into_iter().find(|(known, _)| argument == format!("--without-{known}"));
        if let Some((_, class)) = class {
            options.ignore = class.ignore();
            continue;
        }
        match std::path::Path::new(&argument).is_file() {
            true => files.push(argument.into()),
            false => name = argument,
        }
    }
    let text = outline(&files, &options).expect("traces");
    let mut shows = false;
    for line in text.lines() {
        if !line.starts_with(' ') {
            shows = line.contains(&name);
        }
        if shows {
            println!("{line}");
        }
    }
}
