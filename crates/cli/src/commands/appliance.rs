//! `vmeter appliance build`.

use crate::output::{self, Output};
use crate::status::Status;
use clap::Subcommand;
use std::path::PathBuf;
use vmeter_appliance::kernel::list_in;
use vmeter_appliance::{build_in, build_to, ApplianceSpec, Content, ExtraFile};
use vmeter_session::cache_dir;
use vmeter_session::failure::{host, usage};
use vmeter_session::Interrupt;

/// `vmeter appliance`.
#[derive(Debug, Subcommand)]
pub enum Appliance {
    /// Write an initramfs. Equal inputs give identical files.
    Build {
        /// minimal or udev.
        #[arg(long, default_value = "minimal")]
        init: String,
        /// Kernel modules to load; vmeter adds the modules that they depend on (default: none).
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        modules: Vec<String>,
        /// Version of the cached kernel to copy the modules from (default: the newest).
        #[arg(long, value_name = "VERSION")]
        kernel: Option<String>,
        /// A file to put into the guest, e.g. --file /etc/motd=motd.txt; may be repeated.
        #[arg(long = "file", value_name = "GUEST=HOST")]
        files: Vec<String>,
        /// File to write (default: a file in vmeter's cache).
        #[arg(short, long = "out", value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// Builds an initramfs and reports its size part by part.
///
/// # Errors
/// Unknown values, a kernel that is not cached, what is missing on this host.
pub fn run(arguments: Appliance, output: &Output) -> anyhow::Result<Status> {
    let Appliance::Build { init, modules, kernel, files, out } = arguments;
    let cache = cache_dir()?;
    let kernels = list_in(&cache);
    let found = match &kernel {
        Some(version) => kernels.iter().find(|k| k.version == *version),
        None => kernels.last(),
    };
    let from = || {
        let modules = found.map(|kernel| kernel.modules());
        modules.ok_or_else(|| match &kernel {
            Some(version) => usage(format!(
                "kernel {version} is not in the cache; `vmeter kernel \
                list` shows the cached kernels"
            )),
            None => host("--modules needs a cached kernel: fetch one with `vmeter kernel fetch`"),
        })
    };
    let mut spec = match init.as_str() {
        "minimal" => ApplianceSpec::minimal(),
        "udev" => ApplianceSpec::udev(from()?),
        other => return Err(usage(format!("--init {other}: expected minimal or udev"))),
    };
    if !modules.is_empty() {
        spec.modules_from = Some(from()?);
        spec.load = modules;
    }
    for file in &files {
        spec.extra_files.push(extra_file(file)?);
    }
    let interrupt = Interrupt::install()?;
    let built = match &out {
        Some(path) => build_to(&spec, path),
        None => build_in(&cache.join("appliances"), &spec),
    };
    let built = interrupt.instead(built.map_err(host), "vmeter kept no files")?;
    for (name, bytes) in &built.sizes.parts {
        output::line(&format!("{bytes:>12} {name}"))?;
    }
    output::line(&format!("{:>12} in all, unpacked", built.sizes.unpacked))?;
    if !output.quiet {
        for note in &built.notes {
            eprintln!("note: {}", vmeter_render::text::neutralise(note));
        }
    }
    output::line(&format!("{} sha256:{}", built.path.display(), built.sha256))?;
    Ok(Status::Good)
}

/// `GUEST=HOST`, with the host file's own permissions.
fn extra_file(text: &str) -> anyhow::Result<ExtraFile> {
    use std::os::unix::fs::PermissionsExt;
    let (path, host_path) = text
        .split_once('=')
        .filter(|(guest, _)| guest.starts_with('/'))
        .ok_or_else(|| usage(format!("--file {text}: expected /path/in/guest=FILE")))?;
    let metadata = std::fs::metadata(host_path)
        .map_err(|error| usage(format!("--file {text}: {host_path}: {error}")))?;
    Ok(ExtraFile {
        path: path.to_owned(),
        content: Content::Host(host_path.into()),
        mode: metadata.permissions().mode() & 0o777,
    })
}
