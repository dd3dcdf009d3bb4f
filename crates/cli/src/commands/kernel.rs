//! `vmeter kernel`.

use crate::output::{self, Output};
use crate::Status;
use clap::Subcommand;
use vmeter_appliance::kernel::{fetch, list_in, FetchOptions};
use vmeter_session::cache_dir;
use vmeter_session::failure::host;

/// `vmeter kernel`.
#[derive(Debug, Subcommand)]
pub enum Kernel {
    /// Download a Debian kernel package and unpack it into the cache.
    Fetch {
        /// Package name, or a .deb file.
        #[arg(default_value = "linux-image-cloud-amd64")]
        package: String,
    },
    /// List the cached kernels.
    List,
}

/// Fetches or lists kernels.
///
/// # Errors
/// A package that cannot be had; an empty list.
pub fn run(arguments: Kernel, out: &Output) -> anyhow::Result<Status> {
    let cache = cache_dir()?;
    match arguments {
        Kernel::Fetch { package } => {
            let deb = package.ends_with(".deb").then(|| package.clone().into());
            let package = deb.is_none().then_some(package);
            let options = FetchOptions { package, deb, cache: Some(cache) };
            let quiet = out.quiet;
            let kernel = fetch(&options, &mut |step| {
                if !quiet {
                    eprintln!("{step}");
                }
            })
            .map_err(host)?;
            output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))?;
        }
        Kernel::List => {
            let kernels = list_in(&cache);
            if kernels.is_empty() {
                return Err(host("no kernel is cached: vmeter kernel fetch"));
            }
            for kernel in kernels {
                output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))?;
            }
        }
    }
    Ok(Status::Good)
}
