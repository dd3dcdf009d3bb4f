//! Whose each page of a snapshot is that holds a guest's RAM in a file.

use crate::recorder::SourceError;
use std::fmt::Write;
use std::fs::File;
use std::path::Path;
use vmeter_kernel_image::{
    discover, locate, page_owners, Candidate, Guest, KernelInfo, MappedRam, Owner,
};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Pages of a file that follow one another and have one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The first page of the file.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// Whose they are.
    pub owner: String,
}

/// What an owner is called.
fn words(owner: &Owner) -> String {
    match owner {
        Owner::Kernel(what) => format!("kernel {what}"),
        Owner::PageTables => "page tables".into(),
        Owner::Stack(thread) => format!("kernel stack of {thread}"),
        Owner::Slab(name) => format!("slab {name}"),
        Owner::File { name, .. } => format!("file {name}"),
        Owner::Anonymous(process) if process.is_empty() => "anonymous".into(),
        Owner::Anonymous(process) => format!("anonymous of {process}"),
        Owner::Free => "free".into(),
    }
}

/// The owners of a file's pages, as far as they are known; `kernel` is the guest's, if it is known.
///
/// # Errors
/// When the file is no guest's RAM, or of a kernel that tells too little.
pub fn owners(ram: &Path, kernel: Option<&Path>, cache: &Path) -> Result<Vec<Owned>, SourceError> {
    let io = |error| SourceError::Io { path: ram.to_owned(), error };
    let failed = |error: vmeter_kernel_image::Error| SourceError::Other(error.to_string());
    let file = File::open(ram).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let candidates = [Candidate { address: 0, length }];
    let given = kernel.and_then(|kernel| KernelInfo::open(cache, kernel).ok());
    let (located, info) = match given {
        Some(info) => (locate(&candidates, &file, &info).map_err(failed)?, info),
        None => {
            let found = discover(&candidates, &file, cache).map_err(failed)?;
            (found.located, found.info)
        }
    };
    let regions = located.regions.clone();
    let memory = MappedRam::new(located.regions, &file);
    let end = regions.iter().map(|region| region.gpa + region.length).max().unwrap_or(0);
    let guest = Guest::new(&memory, &info, located.place).map_err(failed)?;
    let frames = page_owners(&guest, end / PAGE).map_err(failed)?;
    let mut found: Vec<Owned> = Vec::new();
    for region in &regions {
        for at in 0..region.length / PAGE {
            let frame = usize::try_from(region.gpa / PAGE + at).ok();
            let owner = frame.and_then(|frame| frames.get(frame)?.as_ref()).map(words);
            let Some(owner) = owner else { continue };
            let place = region.host / PAGE + at;
            match found.last_mut() {
                Some(last) if last.first + last.pages == place && last.owner == owner => {
                    last.pages += 1;
                }
                _ => found.push(Owned { first: place, pages: 1, owner }),
            }
        }
    }
    found.sort_by_key(|owned| owned.first);
    Ok(found)
}

/// As a file has them: a line each.
pub fn to_text(owners: &[Owned]) -> String {
    owners.iter().fold(String::new(), |mut text, Owned { first, pages, owner }| {
        let _ = writeln!(text, "{first} {pages} {owner}");
        text
    })
}

/// What such a file says.
pub fn parse(text: &str) -> Vec<Owned> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (first, pages) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Owned { first, pages, owner: words.next()?.to_owned() })
    };
    text.lines().filter_map(line).collect()
}
