//! The moments at which a machine's memory is looked at, each a machine of the session.

use anyhow::Result;
use std::path::Path;
use vmeter_appliance::root_image::{self, RootImageSpec, DATA_FILE};
use vmeter_appliance::{Content, ExtraFile};
use vmeter_machine::backend;
use vmeter_model::MachineSpec;
use vmeter_session::failure::{host, usage};

use crate::prepare::Wishes;

vmeter_base::words! {
    /// When memory is looked at.
    pub enum Stage {
        /// At the guest's ready point.
        Ready = "ready",
        /// After the guest has read a file.
        Read = "after-reading",
        /// At the end of the run of a machine whose guest is not vmeter's own.
        End = "end",
    }
}

impl Stage {
    /// The label of a machine of the session.
    pub(super) fn label(self, machine: &str, read_mib: u32) -> String {
        match self {
            Stage::Ready => format!("{machine}, ready"),
            Stage::Read => format!("{machine}, read {read_mib} MiB"),
            Stage::End => machine.to_owned(),
        }
    }
}

/// The end of what the guest's init prints of its memory: looked at there, the guest waits.
const UNTIL: &str = "line:^vmeter: end of meminfo";

/// True if the guest's init is vmeter's own, which can be told what to do.
fn is_own(spec: &MachineSpec) -> bool {
    let named = backend::of(spec).is_some_and(|b| b.name() != "mock");
    spec.command.is_empty() && spec.initrd.is_none() && named
}

/// The machine at each moment.
///
/// # Errors
/// Class usage: an `--until` for a guest that is looked at where vmeter says.
pub(super) fn stages(spec: &MachineSpec, read_mib: u32) -> Result<Vec<(Stage, MachineSpec)>> {
    if !is_own(spec) {
        return Ok(vec![(Stage::End, spec.clone())]);
    }
    if let Some(until) = &spec.until {
        return Err(usage(format!(
            "--until {until}: vmeter always measures its own guest at two moments, at the ready \
             point and after the guest has read a file. Use --until only with your own guest \
             (--initrd FILE, or a command line after --)"
        )));
    }
    let at = |words: String| {
        let mut spec = spec.clone();
        spec.append.push(words);
        spec.until = Some(UNTIL.into());
        spec
    };
    let root = spec.root.as_deref().unwrap_or("initramfs");
    let mut all = vec![(Stage::Ready, at("vmeter.read=0 vmeter.memory vmeter.exit=stay".into()))];
    if read_mib > 0 {
        let kib = read_mib * 1024;
        // An NVDIMM is a root like any other persistent memory.
        let root = if root == "nvdimm" { "dax" } else { root };
        let words = format!("vmeter.root={root} vmeter.read={kib} vmeter.memory vmeter.exit=stay");
        all.push((Stage::Read, at(words)));
    }
    Ok(all)
}

/// What such machines need besides: a root in the initramfs holds the file that others have on
/// their device.
///
/// # Errors
/// Class host: the file can't be made.
pub(super) fn wishes(spec: &MachineSpec, cache: &Path) -> Result<Wishes> {
    let mut wishes = Wishes { memory: true, ..Wishes::default() };
    if is_own(spec) && spec.root.as_deref().is_none_or(|root| root == "initramfs") {
        let data = root_image::data_file_in(&cache.join("roots"), &RootImageSpec::default());
        wishes.files.push(ExtraFile {
            path: format!("/sysroot/{DATA_FILE}"),
            content: Content::Host(data.map_err(host)?),
            mode: 0o644,
        });
    }
    Ok(wishes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_guest_is_looked_at_twice_and_another_at_its_end() {
        let spec = MachineSpec { root: Some("dax".into()), ..MachineSpec::default() };
        let all = stages(&spec, 64).expect("valid");
        assert_eq!(
            all.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(),
            [Stage::Ready, Stage::Read]
        );
        assert!(all[1].1.append[0].contains("vmeter.read=65536"), "{all:?}");
        assert_eq!(stages(&spec, 0).expect("valid").len(), 1);
        let own = MachineSpec {
            command: vec!["vmm".into()],
            until: Some("userspace".into()),
            ..spec.clone()
        };
        assert_eq!(stages(&own, 64).expect("valid"), [(Stage::End, own.clone())]);
        let until = MachineSpec { until: Some("userspace".into()), ..spec };
        assert!(stages(&until, 64).expect_err("refused").to_string().contains("--until"));
    }
}
