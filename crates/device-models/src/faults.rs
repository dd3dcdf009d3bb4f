//! What a command costs, by model.

use crate::spin::Spin;
use crate::Model;
use rustix::fs::{memfd_create, MemfdFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Read to have every CPU run a work item and wait for all (mm/vmstat.c,
/// `vmstat_refresh`); root's.
const STAT_REFRESH: &str = "/proc/sys/vm/stat_refresh";
/// As a Xen device model locks a buffer for each of a command's hypercalls.
const CALLS: usize = 3;
const BURN_US: u64 = 300;
const SLEEP: Duration = Duration::from_millis(1);
/// A sector.
const BUFFER: [u8; 512] = [0x5a; 512];
const ITEM: usize = 16;
/// linux/mempolicy.h.
const MPOL_MF_MOVE: libc::c_int = 2;

/// A fault, ready to be met.
pub(crate) enum Fault {
    None,
    StatRefresh,
    MovePages(Page),
    Sleep,
    Burn(Spin),
    Bytes(File),
    List { file: File, items: u64 },
}

impl Fault {
    pub fn new(model: Model) -> io::Result<Fault> {
        let file = || Ok::<_, io::Error>(File::from(memfd_create("disk", MemfdFlags::CLOEXEC)?));
        Ok(match model {
            Model::Healthy => Fault::None,
            Model::EveryCpu if File::open(STAT_REFRESH).is_ok() => Fault::StatRefresh,
            Model::EveryCpu => Fault::MovePages(Page::new()?),
            Model::Sleeping => Fault::Sleep,
            Model::Burning => Fault::Burn(Spin::new(1)),
            Model::Bytewise => Fault::Bytes(file()?),
            Model::Growing => Fault::List { file: file()?, items: 0 },
        })
    }

    /// Does what the guest's command asks for.
    pub fn command(&mut self) -> io::Result<()> {
        match self {
            Fault::None => Ok(()),
            Fault::StatRefresh => (0..CALLS).try_for_each(|_| refresh(STAT_REFRESH.as_ref())),
            Fault::MovePages(page) => (0..CALLS).try_for_each(|_| page.migrate()),
            Fault::Sleep => {
                std::thread::sleep(SLEEP);
                Ok(())
            }
            Fault::Burn(spin) => {
                spin.us(BURN_US);
                Ok(())
            }
            Fault::Bytes(file) => BUFFER.iter().try_for_each(|byte| file.write_all(&[*byte])),
            Fault::List { file, items } => {
                file.write_all_at(&[0x5a; ITEM], *items * ITEM as u64)?;
                *items += 1;
                let mut item = [0; ITEM];
                (0..*items).try_for_each(|n| file.read_exact_at(&mut item, n * ITEM as u64))
            }
        }
    }
}

fn refresh(path: &Path) -> io::Result<()> {
    let mut byte = [0];
    // It is empty: the work is done by the call.
    File::open(path)?.read(&mut byte).map(drop)
}

/// A page that can be moved, which drains every CPU's LRU caches first (mm/migrate.c).
pub(crate) struct Page(Vec<u8>);

impl Page {
    fn new() -> io::Result<Page> {
        let page = Page(vec![1; 3 * rustix::param::page_size()]);
        page.migrate()?;
        Ok(page)
    }

    fn migrate(&self) -> io::Result<()> {
        let size = rustix::param::page_size();
        let inside = (self.0.as_ptr() as usize).next_multiple_of(size);
        let pages = [inside as *const libc::c_void];
        let nodes: [libc::c_int; 1] = [0];
        let mut status: [libc::c_int; 1] = [0];
        // SAFETY: a page of our own and arrays of the one element that the count says.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                1usize,
                pages.as_ptr(),
                nodes.as_ptr(),
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
